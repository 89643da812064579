"""A sweep: several runs that differ in some values, as one job array, or as several arrays if the sweep is larger than
Slurm's MaxArraySize."""
