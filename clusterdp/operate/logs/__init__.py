"""The output of the ranks: `clusterdp logs`.

Lines have no times of their own, unless the program printed some. Those are used, and none are made up.

show_logs    `clusterdp logs`
choice       which lines the user wants: ranks, attempts, since when, how many, only errors
chosen       which attempts and logs those are
timed_log    one log, as lines with times
errors       what looks like an error, and which ranks have the same
printer      lines with their ranks
"""
