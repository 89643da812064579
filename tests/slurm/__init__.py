"""A real Slurm of several nodes on this machine, for tests: its own daemons, database, ports and folder.

`python -m tests.slurm [COMMAND...]` boots one, runs COMMAND in it (or your shell) and takes it down.
In pytest it is the session fixture `real_slurm`.
"""
