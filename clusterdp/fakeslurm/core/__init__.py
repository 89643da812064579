"""The data and the rules that the processes share; nothing here imports another folder of fakeslurm.

model              the cluster as data: nodes, partitions, jobs, steps
job_desc           JobDesc: what a job asks for
job_ids            12_[1-3].0: which jobs and steps a user means
job_environ        the variables of batch scripts and tasks
step_plan          StepPlan: what the process of a step is told to run
orders             what slurmctld tells the process of a step
reports            what the process of a step tells slurmctld
wire               the frames in which processes talk to each other
shape              what a cluster looks like: its nodes, partitions and slurm.conf
paths              the files of a cluster, and its socket
faults             what is wrong with the controller on purpose
release            what differs between the releases of Slurm
per_release        the rows of that table
error_texts        how commands refuse: Slurm's texts and exit statuses
constraints        --constraint
task_usage         what tasks have used
times              Slurm's forms of time
ranges             0-3,7 and 2,1(x3): Slurm's lists of numbers
hosts_file         an /etc/hosts in which the names of nodes resolve
login_shells       an /etc/profile with which login shells find the commands
mounts             shows such files to jobs in the place of the machine's
node_folders       a /tmp and /dev/shm of a node's own
file_traps         lets a supervisor hold the calls by which tasks change files
processes          finds, watches and signals processes of this machine
"""
