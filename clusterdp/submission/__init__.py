"""Turns a config into a submitted job. This package runs on the login node, and imports no torch.

snapshot/         the copy of the submit directory, and the record of a run's source
render/           from a config to the script for sbatch
send/             sending a job to Slurm, once
sweep/            several runs that differ in some values, as one job array
"""
