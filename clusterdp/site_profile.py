"""The files of the user's own settings: the site profile, and for each cluster behind ssh a file beside it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from clusterdp.errors import ConfigError

HERE = "here"  # --on here: this machine, whatever the site profile says
ON = re.compile(r"^on[ \t]*:[ \t]*(?P<quote>[\"']?)(?P<host>[^\s#\"']*)(?P=quote)[ \t]*(?:#.*)?$", re.MULTILINE)


def site_profile() -> Path | None:
    """Returns the file of the site profile: $CLUSTERDP_SITE, else site.yaml in the user's configuration folder, else in
    the machine's. None if no such file exists."""
    if own := _own_profile():
        return own
    machines = Path("/etc/clusterdp/site.yaml")
    return machines if machines.is_file() else None


def _own_profile() -> Path | None:
    named = os.environ.get("CLUSTERDP_SITE")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"CLUSTERDP_SITE: no such file: {named}. Correct or unset it.")
        return Path(named)
    return path if (path := user_profile()).is_file() else None


def user_profile() -> Path:
    """Returns the path of the user's own site profile. The file need not exist."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "clusterdp", "site.yaml")


def host_profile(host: str) -> Path:
    """Returns the path of the user's settings for one cluster behind ssh. The file need not exist."""
    return user_profile().parent / "hosts" / f"{host}.yaml"


def default_host() -> str:
    """Returns `on:` of the user's own site profile, not of the machine's; empty without one. No YAML is loaded, because
    each verb asks."""
    path = _own_profile()
    found = ON.search(path.read_text(encoding="utf-8", errors="replace")) if path else None
    return found["host"] if found else ""
