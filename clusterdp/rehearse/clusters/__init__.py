"""The clusters on which the runs of a rehearsal are made.

drill_cluster  what a drill needs of a cluster
local_cluster  a fake one, on this machine
slurm_cluster  a real Slurm, with the faults that a user may cause there
job_cluster    the shape of a fake cluster on which this job can run; also of that of --cluster local
"""
