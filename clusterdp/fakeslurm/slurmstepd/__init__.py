"""The process of one step: it starts the tasks, passes on their output, and outlives a killed daemon.

forkserver             a small process that forks the processes of steps
stepd                  the process of a step
launch                 starts one task
task_io                passes on what tasks write and read
output_files           the files of a step, and lines with the rank in front
messages               what srun and slurmstepd say about a step
memory_limit           which tasks use more memory than the job may
srun_connection        the connection to the srun that started the step
controller_connection  the connection to slurmctld, which may be killed and come back
event_loop             descriptors to watch and actions to take later
"""
