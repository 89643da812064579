"""Rehearsing a job: short runs on a fake cluster, undisturbed and under each drill, which must all end in the same
state.

clusters/    the clusters on which runs are made
observe/     the behaviour of a run, seen from outside
drills/      the faults, and the proof that each happened
state/       the end states of runs, and their differences
judge/       the verdict, and the diagnosis of a job that has failed
show/        the output for the user
"""
