"""List waiting and running jobs."""

from client import run  # type: ignore[import-not-found]

run("squeue")
