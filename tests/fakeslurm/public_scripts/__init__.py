"""Job scripts in the manner of public ones, run on the fake cluster and on a real Slurm.

scripts/      the scripts, each with the public one whose way of asking Slurm it follows
records/      what the real Slurm made of each
playing.py    runs a folder of scripts on a cluster, with stand-ins for the programs that they call
__main__.py   runs a folder of scripts on both clusters and prints what differs
"""
