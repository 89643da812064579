"""The commands that change and end jobs, nodes and reservations."""
