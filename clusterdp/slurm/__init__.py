"""Slurm's commands, variables and texts. Standard library only."""
