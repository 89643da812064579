"""Whole jobs, from submit to end: each test on the fake cluster and, marked `slurm`, on a real one."""
