"""Copy a file to the nodes of a job."""

from client import run  # type: ignore[import-not-found]

run("sbcast")
