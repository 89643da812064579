"""List jobs of the past."""

from client import run  # type: ignore[import-not-found]

run("sacct")
