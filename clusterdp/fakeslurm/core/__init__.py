"""Data and rules that all processes share. No module here imports another folder of fakeslurm."""
