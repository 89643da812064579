"""Show and change jobs, nodes, partitions."""

from client import run  # type: ignore[import-not-found]

run("scontrol")
