"""`clusterdp logs`: the output of the ranks.

A line has a time only if the program printed the time.

show_logs    `clusterdp logs`
choice       the lines that the user wants: ranks, attempts, start time, number, only errors
chosen       the attempts and the logs of that choice
timed_log    one log, as lines with times
errors       lines that look like an error, and the ranks that share them
printer      prints lines with their ranks
"""
