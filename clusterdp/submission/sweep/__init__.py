"""A sweep: several runs that differ in some values, as one job array, or as several arrays if the sweep is larger than
Slurm's MaxArraySize.

plan    everything that the submission of a sweep writes and sends
arrays  the submission of the arrays, and its undoing if one is refused
"""
