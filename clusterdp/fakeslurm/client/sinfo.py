"""List nodes and partitions."""

from client import run  # type: ignore[import-not-found]

run("sinfo")
