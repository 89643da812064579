"""Text output for terminals of any width, for pipes and for files."""
