"""Slurm's commands, variables and texts. Standard library only.

commands    the only place that runs a Slurm command
env         which rank of which job this process is, by its environment
hostlist    host list expressions: n[1-3]
nodes       nodes of a partition, as sinfo shows them
jobid       what a job id looks like
state       the names of job states, and exit codes
quantities  times and amounts of memory
"""
