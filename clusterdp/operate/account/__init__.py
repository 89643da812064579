"""`clusterdp goodput`: the allocated time of a run, divided by activity. Only the run's records are read."""
