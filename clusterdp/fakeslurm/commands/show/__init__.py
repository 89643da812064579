"""The commands that print jobs, nodes and accounting, as tables and as JSON."""
