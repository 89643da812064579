"""The allocated time of a run by activity, by its records alone: `clusterdp goodput`.

goodput       `clusterdp goodput`: the tables and the JSON
run_account   the account of a run: attempts, goodput, hours by cause
parts         one attempt: its allocated time in parts
"""
