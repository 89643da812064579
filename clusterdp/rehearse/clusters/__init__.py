"""The clusters on which the runs of a rehearsal are made.

drill_cluster  the operations of a cluster that a drill needs
local_cluster  a fake cluster, on this machine
slurm_cluster  a real Slurm, with the faults that a user may cause there
job_cluster    the shape of a fake cluster on which a job can run, also for --cluster local
"""
