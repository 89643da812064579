"""Turns a config into a submitted job. This package runs on the login node, and imports no torch.

plan              everything that a submission writes and sends; submit()
resume            a new job for an existing run
job               Job: the handle of a submitted run
snapshot/         the copy of the submit directory, and the record of a run's source
render/           from a config to the script for sbatch
send/             sending a job to Slurm, once
sweep/            several runs that differ in some values, as one job array
entry_check       the check, without an import, that the entry exists and takes the params
installed_check   the check that the packages for the config are installed
init              `clusterdp init`
show              `clusterdp show`
"""
