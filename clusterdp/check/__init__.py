"""`clusterdp check`: what would go wrong with a run, before it waits in the queue. Login node; torch is not loaded.

check          all findings, in their order
at_submit      the part of it that `submit` does
show_check     how they are printed
finding        Finding: what, why, and what to change
subject        Subject: what is looked at
cluster/       what Slurm says of the cluster, and whether what is asked for fits
survival/      whether the run comes back, and its ranks hear of a stop
surroundings/  folders, disks, files, interpreters
program/       what can be seen in a program's own text
"""
