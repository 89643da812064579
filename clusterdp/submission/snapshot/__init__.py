"""Copies the submit directory for a run, whose attempts all run the copy, and records the run's source."""
