"""Checks whether the job fits the cluster, by what Slurm's commands print about the cluster."""
