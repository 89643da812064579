"""Data and rules that all processes share. No module here imports another folder of fakeslurm.

model              the cluster as data: nodes, partitions, jobs, steps
job_desc           JobDesc: the request of a job
job_ids            ids of jobs and steps as users write them: 12_[1-3].0
job_environ        the variables of batch scripts and tasks
step_plan          StepPlan: the plan of a step that slurmstepd runs
orders             the messages from slurmctld to slurmstepd
reports            the messages from slurmstepd to slurmctld
wire               the frames in which processes send messages
shape              the shape of a cluster: its nodes, partitions and slurm.conf
paths              the files of a cluster, and its socket
faults             faults of the controller, made on purpose
release            the table of differences between the releases of Slurm
per_release        the rows of that table
error_texts        refusals of commands: Slurm's texts and exit statuses
constraints        --constraint
task_usage         the CPU time and memory that tasks used
times              Slurm's forms of time
ranges             Slurm's lists of numbers: 0-3,7 and 2,1(x3)
hosts_file         an /etc/hosts in which the names of nodes resolve
login_shells       an /etc/profile with which login shells find the commands
mounts             mounts such files over the machine's, for jobs
node_folders       a /tmp and /dev/shm for each node
file_traps         lets a supervisor hold the system calls by which tasks change files
processes          finds, watches and signals processes of this machine
"""
