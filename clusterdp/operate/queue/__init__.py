"""Asks squeue about a run, and explains the answer to the user."""
