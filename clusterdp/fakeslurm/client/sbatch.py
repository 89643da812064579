"""Submit a script."""

from client import run  # type: ignore[import-not-found]

run("sbatch")
