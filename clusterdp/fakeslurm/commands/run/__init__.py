"""The commands that start jobs and steps."""
