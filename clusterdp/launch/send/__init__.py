"""Sending a job to Slurm, once, whatever befalls the sender.

sbatch       backend: sbatch
submitit     backend: submitit
new_folder   the folder of a new run, made, and removed if nothing was submitted
lock         one process at a time submits a job of a run
in_doubt     a submission of which nobody knows how it ended
refusals     sbatch's refusals, each with the key that it means
"""
