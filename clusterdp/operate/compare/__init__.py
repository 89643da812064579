"""The metrics of runs as numbers, curves and differences: `clusterdp plot` and `clusterdp diff`."""
