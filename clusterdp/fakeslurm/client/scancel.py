"""End or signal jobs."""

from client import run  # type: ignore[import-not-found]

run("scancel")
