"""Sends a job to Slurm, exactly once even if the sending process fails.

sbatch       backend: sbatch
submitit     backend: submitit
new_folder   the folder of a new run, made, and removed if nothing was submitted
lock         one process at a time submits a job of a run
answers      answers of sbatch without a job id: an unknown outcome, or a refusal of a key of the config
"""
