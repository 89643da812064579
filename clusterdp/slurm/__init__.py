"""Slurm's commands, variables and texts. Standard library only.

commands    the only place that runs a Slurm command
env         the rank and the job of this process, from its environment
hostlist    host list expressions: n[1-3]
nodes       nodes of a partition, as sinfo shows them
jobid       the form of a job id
state       the names of job states, and exit codes
quantities  times and amounts of memory
"""
