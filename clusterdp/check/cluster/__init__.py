"""Checks whether the job fits the cluster, by what Slurm's commands print about the cluster.

cluster_facts  Slurm's answers about the cluster
limits         the limits of partitions and arrays
accounting     the limits of the partition's QOS, the job's QOS and the accounts
nodes          whether nodes of the requested shape exist
"""
