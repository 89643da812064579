"""Reports on what was used."""

from client import run  # type: ignore[import-not-found]

run("sreport")
