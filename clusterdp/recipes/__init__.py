"""Small trainings on real data, which the files in configs/ start. Each training runs alone, under torchrun, and as a
job.

data/             the data sets of the recipes
"""
