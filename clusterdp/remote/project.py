"""The files of the working directory that go to the cluster: those of which `submit` would take a snapshot."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterdp import config as config_module
from clusterdp.config import Config, from_plain
from clusterdp.errors import ConfigError
from clusterdp.plainfile import open_plain
from clusterdp.remote.received_project import SentFile
from clusterdp.remote.wire import CHUNK
from clusterdp.submission.render.job_secrets import secret_paths
from clusterdp.submission.snapshot.code_snapshot import SHOWN, choose, find_ignored, in_words
from clusterdp.submission.snapshot.source_record import git_record
from clusterdp.wording import counted, size, some_of


class Project:
    """The files, and what the cluster is told about them. Raises ConfigError for a config that does not belong to them,
    and as submit does for files that are too large."""

    def __init__(self, config: str, overrides: Sequence[str], sweeps: Sequence[str] = ()):
        self.folder = Path.cwd()
        self.given = config_module.read(config, overrides, sweeps)
        values = self.given.values
        parts = {name: values[name] for name in ("snapshot", "notify") if values.get(name)}
        secrets = (values.get("launch") or {}).get("secret_files") or {}
        own = from_plain(Config, {**parts, "launch": {"secret_files": secrets}})
        chosen = choose(self.folder, own.snapshot, secrets=secret_paths(own))
        self.files: dict[str, SentFile] = {}
        self.outside: list[str] = []  # links that lead out of the project
        for name, status in chosen.files.items():
            file = SentFile.of(self.folder / name, status)
            if file.link and not _inside(self.folder, name, file.link):
                self.outside.append(name)
            else:
                self.files[name] = file
        self.secret, self.ignored = chosen.secret, find_ignored(self.folder, chosen.linked)
        self.git, self.diff = git_record(self.folder)
        self.config = self._config_files(config)

    def as_json(self) -> bytes:
        about: dict[str, Any] = {
            "origin": [socket.gethostname(), str(self.folder)],
            "files": self.files,
            "config": self.config,
            "git": self.git,
            "diff": self.diff.decode("utf-8", "surrogateescape"),
        }
        return json.dumps(about, separators=(",", ":")).encode("utf-8") + b"\n"

    def contents(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yields the bytes of these files in turn. Raises ConfigError for a file that has changed meanwhile."""
        for name in names:
            left = self.files[name].size
            with os.fdopen(open_plain(self.folder / name), "rb") as file:
                while left and (data := file.read(min(CHUNK, left))):
                    left -= len(data)
                    yield data
                if left or file.read(1):
                    raise ConfigError(f"{name}: was changed while it was sent. Type it again when it is whole.")

    def told(self, lacking: Sequence[str], sends: bool = True) -> str:
        """Returns lines about what travels, and what does not."""
        total = sum(self.files[name].size for name in lacking)
        did = "sent" if sends else "would be sent"
        names = "" if sends or not lacking else f": {some_of(sorted(lacking), SHOWN)}"
        lines = [f"Code: {counted(len(self.files), 'file')}, {len(lacking)} {did} ({size(total)}){names}"]
        if self.secret:
            lines.append(
                f"Not sent, for secrets: {some_of(self.secret, SHOWN)}. Put them there yourself: scp, chmod 600"
            )
        if self.outside:
            lines.append(f"Not sent, for it leads out of the project: {some_of(self.outside, SHOWN)}. Make it there")
        if self.ignored:
            lines.append(in_words(self.ignored).replace("Not in it", "Not sent", 1) + ", and put it there")
        return "\n".join(lines)

    def _config_files(self, config: str) -> list[str]:
        """Returns the names of the files that make the config."""
        template = (self.given.values.get("launch") or {}).get("template")
        profile = config_module.site_profile()
        read = {place.rpartition(":")[0] for place in self.given.sources.values()} - {"", str(profile)}
        found = []
        for word in {config, *read, *filter(None, [template])}:
            path = Path(os.path.normpath(self.folder / Path(word).expanduser()))
            if not path.is_file() or is_shipped(path):
                continue
            name = os.path.relpath(path, self.folder)
            if name not in self.files:
                if name.startswith(".."):
                    what, remedy = (
                        "is outside of the project",
                        f"Type it in the folder above both, or copy it to {self.folder}",
                    )
                else:
                    what, remedy = "is not among the files that are sent", "Let git know it: git add"
                raise ConfigError(f"{word}: {what} ({self.folder}). {remedy}.")
            found.append(name)
        return sorted(found)


def is_shipped(path: Path) -> bool:
    """Returns whether a file belongs to clusterdp: the cluster has its own."""
    from clusterdp.submission.render.shipped_files import shipped_folder

    return any(path.is_relative_to(shipped_folder(name)) for name in ("configs", "sbatch_templates"))


def _inside(folder: Path, name: str, link: str) -> bool:
    target = os.path.normpath(folder / Path(name).parent / link)
    return not os.path.isabs(link) and Path(target).is_relative_to(folder)
