"""Show reports on usage."""

from client import run  # type: ignore[import-not-found]

run("sreport")
