"""`clusterdp check`: finds mistakes of a run before its job waits in the queue. The check runs on a login node, without
torch.

cluster/       the cluster by Slurm's answers, and whether the request fits
survival/      whether the run comes back, and whether its ranks get a stop
surroundings/  folders, disks, files, interpreters
program/       facts from a program's own text
"""
