"""Sends a job to Slurm, exactly once even if the sending process fails."""
