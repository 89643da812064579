"""The clusters on which the runs of a rehearsal are made."""
