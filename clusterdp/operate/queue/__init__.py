"""Asks squeue about a run, and explains the answer to the user.

run_cluster      the cluster of a run's jobs
moved_folder     a run folder that was copied or moved
pending_reasons  a table of Slurm's reasons for a pending job, with remedies
run_status       the state of a run by its records and squeue together
"""
