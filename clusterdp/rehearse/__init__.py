"""Rehearsing a job: it runs here, short, on a fake cluster, undisturbed and under each drill, and must end the same.

rehearsal    the whole of it: the undisturbed runs, then the drills
shortening   what of the config is other
run_process  a run in a process of its own
one_run      what runs in there
experiments  runs from the files that a run resumed from, to find out what of them is read
run_spec     what the two tell each other
clusters/    where a run is made
observe/     what it does, seen from outside
drills/      what is done to it, and the proof that it was done
state/       what it has left at its end, and how two such states differ
judge/       the verdict, and what is wrong with a job that has failed
show/        what the user sees
"""
