"""From a config to a submitted job. Runs on the login node, and imports no torch.

plan              all that a submission would write and send; submit()
resume            a new job for a run that is there
job               Job: the handle of a submitted run
snapshot/         the copy of the submit directory, and the record of what a run was made from
render/           from a config to the text that sbatch is given
send/             sending a job to Slurm, once
sweep/            several runs that differ in some values, as one job array
entry_check       whether the entry exists and takes the params, without importing it
installed_check   whether the packages are installed that the config asks for
init              `clusterdp init`
show              `clusterdp show`
"""
