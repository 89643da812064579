"""The process of one step, which starts the tasks, passes on their output, and survives a killed daemon.

forkserver             a small process that forks the slurmstepds
stepd                  the process of a step
launch                 starts one task
task_io                passes on the input and output of tasks
output_files           the files of a step, and lines with the rank in front
messages               the messages of srun and slurmstepd about a step
memory_limit           finds tasks that use more memory than the job may use
srun_connection        the connection to the srun that started the step
controller_connection  the connection to slurmctld, which may be killed and restarted
event_loop             descriptors to watch and actions to take later
"""
