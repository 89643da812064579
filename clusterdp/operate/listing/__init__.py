"""`clusterdp list`: the user's runs, the newest first.

list_runs       `clusterdp list`: selects runs, and prints their table or their JSON
filters         --state, --name, --tag and --since
columns         the table, as wide as the terminal
look            one run folder: its summary, or its history if the run may not be over
"""
