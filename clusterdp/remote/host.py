"""RemoteHost: a cluster behind ssh, by its name in the user's ~/.ssh/config, with the settings for it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp.errors import ConfigError
from clusterdp.plainfile import write_durably
from clusterdp.site_profile import host_profile, site_profile

NAME = re.compile(r"[A-Za-z0-9_][\w.@:%+-]*", re.ASCII)  # never an option of ssh
PLAIN = re.compile(r"~?[\w./@%+=:,-]+", re.ASCII)  # a path that every login shell takes as it is, but for a ~ in front


# `remote:` as people write it: YAML and the config tree take longer to load than all else here
SETTING = r"(?:folder|python):[ \t]+[~/\w][\w./~-]*[ \t]*"
BLOCK = rf"\n(?:[ \t]+{SETTING}(?:#.*)?\n)+(?![ \t])"
FLOW = rf"\{{[ \t]*{SETTING}(?:,[ \t]*{SETTING})?\}}[ \t]*(?:#.*)?$"
PLAIN_SECTION = re.compile(rf"^remote:[ \t]*(?:{BLOCK}|{FLOW})", re.MULTILINE)


class RemoteHost(NamedTuple):
    name: str
    folder: str  # the folder there that stands for the working directory
    python: str


def remote_host(name: str) -> RemoteHost:
    """Returns the host of that name. Raises ConfigError for a name or a setting that cannot be used."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"--on {name!r}: is not the name of a host. Write one of ~/.ssh/config.")
    values: dict[str, Any] = {"folder": "~/clusterdp/PROJECT", "python": "python3"}
    for path in filter(None, (site_profile(), host_profile(name))):
        if path.is_file():
            values |= _settings(path)
    folder, python = str(values["folder"]), str(values["python"])
    if not folder.startswith(("/", "~/")) or "\0" in folder:
        raise ConfigError(f"remote.folder: {folder!r} does not begin with / or ~/. Write where it is on {name}.")
    if not PLAIN.fullmatch(python):
        raise ConfigError(f"remote.python: {python!r} has characters that a shell would read. Name a link to it.")
    return RemoteHost(name, folder.replace("PROJECT", Path.cwd().name), python)


def _settings(path: Path) -> dict[str, Any]:
    """Returns `remote:` of a profile."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if found := PLAIN_SECTION.search(text):
        return dict(re.findall(r"(folder|python):[ \t]+([^\s,}]+)", re.sub("#.*", "", found[0])))
    if "remote" not in text:
        return {}
    from clusterdp.config.files import read_file
    from clusterdp.config.tree import SiteConfig

    return dict(read_file(path, SiteConfig).values.get("remote") or {})


def cache_folder(name: str) -> Path:
    """Returns the folder of what is kept about a host."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "clusterdp" / name


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only the user can read, in a folder that only the user can enter."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(path, data, mode=0o600)
