"""The output of a rehearsal."""
