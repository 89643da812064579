"""Show fair shares."""

from client import run  # type: ignore[import-not-found]

run("sshare")
