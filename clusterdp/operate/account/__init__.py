"""`clusterdp goodput`: the allocated time of a run, divided by activity. Only the run's records are read.

goodput       `clusterdp goodput`: the tables and the JSON
run_account   the account of a run: attempts, goodput, hours by cause
parts         the allocated time of one attempt in parts
"""
