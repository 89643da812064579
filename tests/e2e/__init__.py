"""Whole jobs, from `clusterdp submit` to their end. Each test runs on the fake cluster and, marked `slurm`, on a real one."""
