"""Rehearsing a job: short runs on a fake cluster, undisturbed and under each drill, which must all end in the same
state.

rehearsal    the undisturbed runs, then the drills
shortening   the config changes that make a rehearsal short and private
run_process  starts a run in a process of its own, and reads its progress
one_run      the main program of that process
run_spec     the order and the outcome of a run, which the two processes exchange
clusters/    the clusters on which runs are made
observe/     the behaviour of a run, seen from outside
drills/      the faults, and the proof that each happened
state/       the end states of runs, and their differences
judge/       the verdict, and the diagnosis of a job that has failed
show/        the output for the user
"""
