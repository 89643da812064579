"""The cluster by Slurm's answers, and whether the job fits.

cluster_facts  what Slurm says of the cluster
limits         what a partition allows, arrays
accounting     what the QOS of the partition, that of the job and the accounts allow
nodes          whether nodes of that shape exist
"""
