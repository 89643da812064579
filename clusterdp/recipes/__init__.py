"""Small trainings on real data, which the first pages start, and what they share with the programs in configs/. Each
training runs alone, under torchrun, and as a job."""
