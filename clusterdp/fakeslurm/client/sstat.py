"""Show what running steps use."""

from client import run  # type: ignore[import-not-found]

run("sstat")
