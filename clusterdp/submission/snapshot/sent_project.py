"""SentProject: the files of a project that came from the user's machine (remote/). A verb that runs on the cluster
takes these as the files of the submit directory, and no other file there. Git was asked where they came from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp.errors import ConfigError

PRIVATE = ".clusterdp"  # in the folder of a project that was sent: what remote/received_project.py keeps there
MOVING = f"{PRIVATE}/moving"  # exists while files that have come are moved to their places


class SentProject(NamedTuple):
    folder: Path  # the submit directory
    names: Collection[str]
    git: dict[str, Any] | None  # the record of source.json
    diff: bytes
    whole: bool = True  # False for a dry run, for which only the files of the config are sent


_sent: list[SentProject] = []  # the one for which a verb runs in this process


@contextmanager
def as_sent(project: SentProject) -> Iterator[None]:
    """In the body of the with statement, `project` is the submit directory."""
    _sent.append(project)
    try:
        yield
    finally:
        _sent.pop()


def sent_project() -> SentProject | None:
    return _sent[-1] if _sent else None


def submit_directory() -> Path:
    """Returns the folder for which a new run is submitted: the working directory, except in a dry run of a project that
    was sent."""
    sent = sent_project()
    return sent.folder if sent else Path.cwd()


def code_is_here() -> bool:
    """Returns whether the program of a new run can be looked at: in a dry run of a project that was sent it cannot."""
    sent = sent_project()
    return sent is None or sent.whole


def check_whole(folder: Path) -> None:
    """Raises ConfigError for a project that was sent, and of which only some files are in their places."""
    if (folder / MOVING).exists():
        raise ConfigError(f"{folder}: was not sent whole. Submit once more from where it came.")
