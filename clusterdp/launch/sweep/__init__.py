"""A sweep: several runs that differ in some values, as one job array, or as several where Slurm allows no larger one.

plan    all that the submission of a sweep would write and send
arrays  the arrays submitted, and undone if one is refused
"""
