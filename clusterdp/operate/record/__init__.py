"""Reads the records of a run folder, and explains them to the user. No module of this package asks Slurm."""
