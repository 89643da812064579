"""Finds the runs and the times that the user names on the command line."""
