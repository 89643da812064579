"""What became of jobs."""

from client import run  # type: ignore[import-not-found]

run("sacct")
