"""Sending a job to Slurm, once, whatever befalls the sender.

sbatch       backend: sbatch
submitit     backend: submitit
new_folder   the folder of a new run, made, and removed if nothing was submitted
lock         one process at a time submits a job of a run
answers      what sbatch answers: no job id, or a refusal that means a key of the config
"""
