"""Reads the records of a run folder, and explains them to the user. No module of this package asks Slurm.

run_history        the history of a run by its folder
attempt_history    one attempt by its files
slurmstepd_notice  the notice that slurmstepd writes when it ends an attempt
standstill         slow ranks, and a run without progress
event_order        the events of a run in the order in which they happened
log_files          the paths of the logs of ranks, agents and the batch script
note               `clusterdp note`
run_state          the states of a run, and their exit codes
ending             the end of an attempt or a job, in words
next_command       the next command to type
"""
