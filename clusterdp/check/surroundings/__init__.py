"""Checks of the job's surroundings: folders, disks, files and interpreters."""
