"""Other programs that it runs: Slurm's commands, notices, and the ranks."""
