"""What the ranks printed: `clusterdp logs`.

Lines have no times of their own, unless the program printed some. Those are used, and none are made up.

show_logs    `clusterdp logs`
choice       which lines the user wants: ranks, attempts, since when, how many, only errors
ranks        lists of ranks: 0,3,8-15
chosen       which attempts and logs those are
starts       from where on each log is shown
follow_logs  the same as it comes, over attempts
grown_files  which of a thousand logs have grown
timed_log    one log, as lines with times
since        where in a log the lines since some time begin
timestamps   the time that a line begins with
tracebacks   which lines are one traceback
errors       what looks like an error, and which ranks have the same
batch_end    the end of the batch script's log, and which rank failed first
printer      lines with their ranks
"""
