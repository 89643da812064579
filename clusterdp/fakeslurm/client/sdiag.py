"""Show figures of the controller."""

from client import run  # type: ignore[import-not-found]

run("sdiag")
