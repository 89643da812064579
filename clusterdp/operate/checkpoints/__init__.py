"""`clusterdp checkpoint`: commands for checkpoints on a login node."""
