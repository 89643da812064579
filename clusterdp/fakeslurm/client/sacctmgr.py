"""List accounts, users and clusters."""

from client import run  # type: ignore[import-not-found]

run("sacctmgr")
