"""A sweep: several runs that differ in some values, as one job array, or as several where Slurm allows no larger one.

plan         all that the submission of a sweep would write and send
same_script  whether all elements can have one script
folder       the folder of a sweep and of its elements, written
arrays       the arrays submitted, and undone if one is refused
again        elements that are over, submitted again
"""
