"""My runs, the newest first: `clusterdp list`.

list_runs       `clusterdp list`: which runs, and the table or the JSON of them
filters         --state, --name, --tag and --since
columns         the table, as wide as the terminal
find_all        the folders of all runs, without looking into them
read_in_time    many folders read at once, and those that do not answer left out
look            one run folder: its summary, its history if it may not be over, or that there is no run
sweep_row       the row of a run, or of a sweep by how its elements stand
summaries       the summaries of runs that are over, kept in a file of mine
ask_squeue      one squeue for all runs of a cluster
"""
