"""My runs, the newest first: `clusterdp list`.

list_runs       `clusterdp list`: which runs, and the table or the JSON of them
filters         --state, --name, --tag and --since
columns         the table, as wide as the terminal
look            one run folder: its summary, its history if it may not be over, or that there is no run
"""
