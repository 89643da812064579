"""Look at the controller's own figures."""

from client import run  # type: ignore[import-not-found]

run("sdiag")
