"""`clusterdp check`: what would go wrong with a run, before it waits in the queue. Login node; torch is not loaded.

check          all findings, in their order
at_submit      the part of it that `submit` does
show_check     how they are printed
finding        Finding: what, why, and what to change
subject        Subject: what is looked at
last_run       the newest run of the same name
cluster_facts  what Slurm says of the cluster
limits         what a partition allows, arrays
misread        hours that are minutes, GPUs without ranks, directives in a script
accounting     what the QOS of the partition, that of the job and the accounts allow
nodes          whether nodes of that shape exist
preemption     how the partition preempts, and whether the run survives
launchers      torchrun, accelerate or srun below the ranks
signals        whether a stop reaches the ranks
storage_room   whether the run folder can be written, is shared, and has room
ignored_files  files that the job needs and the snapshot leaves out
program_hints  what the program's text says
probe          --probe: a file to the store and to the run folder
program/       what can be seen in a program's own text
"""
