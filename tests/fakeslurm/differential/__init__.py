"""Random small workloads, run on the fake cluster and on a real Slurm: what users can see of them must be the same.

workload.py     what a workload is, and how one is made up
scripts.py      its sbatch scripts
driver.py       runs many at a time on a cluster, with the cluster's own commands alone
observed.py     what is left of each when it is over, without what differs from run to run
cases/RELEASE/  workloads that differed once, with what the real Slurm of that release did
__main__.py     runs many and keeps those that differ
"""
