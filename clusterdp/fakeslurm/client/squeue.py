"""What waits and runs."""

from client import run  # type: ignore[import-not-found]

run("squeue")
