"""`clusterdp logs`: the output of the ranks.

show_logs        `clusterdp logs`
choice           the lines that the user wants: ranks, attempts, number, only errors
chosen           the attempts and the logs of that choice
rank_log         one log, as lines
traceback_lines  where a traceback begins and ends
errors           lines that look like an error, and the ranks that share them
printer          prints lines with their ranks
"""
