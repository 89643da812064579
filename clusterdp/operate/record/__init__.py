"""The records of a run folder, as objects and in words. Slurm is not asked.

run_history        what a run folder says has happened
attempt_history    one attempt, as its files tell it
slurmstepd_notice  what slurmstepd wrote when it ended an attempt
standstill         ranks that are slow, and a run that makes no progress
event_order        the events of a run in the order in which they happened
log_files          where the logs of ranks, agents and the batch script are
note               `clusterdp note`
run_state          the states of a run, and their exit codes
ending             how an attempt or a job ended, in words
next_command       what to type next
"""
