"""A run in Slurm's queue: one squeue, in words.

run_cluster      which cluster the jobs of a run are on
moved_folder     a run folder that was copied or moved
pending_reasons  Slurm's reasons for a pending job, and what to do; a table
run_status       the state of a run by its records and squeue together
"""
