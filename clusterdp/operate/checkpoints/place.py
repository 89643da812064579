"""CheckpointPlace: the checkpoints that the user names: RUN_OR_URL, and optionally an @ with a step or the token of a
commit.

As in every other verb, a run folder, a job id or no word at all names a run (find/find_run.py); its checkpoints are
meant. RUN_OR_URL can also be a folder of checkpoints, one of its step folders, or any URL.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from clusterdp.checkpoint.format import layout
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Damage, scan
from clusterdp.errors import CheckpointError, RunError
from clusterdp.operate.find.find_run import find_run
from clusterdp.operate.output.formatting import shown_path
from clusterdp.rundir import RunDir, read_events
from clusterdp.storage import Storage, open_storage
from clusterdp.wording import some_of


@dataclass(frozen=True)
class CheckpointPlace:
    """A place of checkpoints, as the user named it."""

    name: str  # the place as the user would type it
    storage: Storage
    run: RunDir | None = None  # the run that saves to this place, if known
    which: str | None = None  # the step or the token that the user named

    def commits(self) -> tuple[list[CheckpointInfo], list[Damage]]:
        """Returns the checkpoints from oldest to newest, and the damaged manifests. Raises CheckpointError if the place
        has neither."""
        commits, damaged = look(self)
        if not commits and not damaged:
            yet = "yet" if self.run else "there"
            raise CheckpointError(f"{self.name}: no checkpoints {yet}. Look at the log, or name another place.")
        return commits, damaged

    def of_which(self, commits: list[CheckpointInfo], none_will_do: bool = False) -> list[CheckpointInfo]:
        """Returns the checkpoints that the user named. A step may have several checkpoints."""
        if self.which is None:
            return commits
        found = [info for info in commits if self.which in (str(info.step), info.token)]
        if not found and not none_will_do:
            steps = [str(step) for step in dict.fromkeys(info.step for info in reversed(commits))]
            raise CheckpointError(
                f"{self.name}: no checkpoint {self.which}. Its steps: {some_of(steps, 12) or 'none'}."
            )
        return found

    def names(self, damage: Damage) -> bool:
        """Returns whether the user named this unreadable manifest. Its file name has the step and the token."""
        folder, _, file = damage.name.partition("/")
        return self.which in (None, str(layout.step_of(folder)), layout.token_of_manifest(file))

    def newest(self) -> CheckpointInfo:
        """Returns the newest checkpoint that the user named."""
        found = self.of_which(self.commits()[0])
        if not found:
            raise CheckpointError(f"{self.name}: every manifest is damaged. `clusterdp checkpoint ls` says how.")
        return found[-1]


def locate(word: str | None, which: str | None = None) -> CheckpointPlace:
    """Returns the place that the user named. Raises RunError or CheckpointError if no such place exists. `which`
    overrides the text after @."""
    if word is not None and not Path(word).exists():
        head, at, tail = word.rpartition("@")
        if at and (_is_step(tail) or layout.is_token(tail)):  # the @ of sftp://user@host is something else
            return locate(head or None, which or tail)
    place = _place(word)
    return replace(place, which=str(int(which)) if _is_step(which) else which) if which else place


def _is_step(word: str) -> bool:
    return re.fullmatch("[0-9]{1,18}", word) is not None


def look(place: CheckpointPlace) -> tuple[list[CheckpointInfo], list[Damage]]:
    """Returns the same as CheckpointPlace.commits(), but two empty lists if the place has no checkpoints."""
    try:
        return scan(place.storage)
    except OSError as error:
        raise CheckpointError(f"{place.name}: cannot be listed: {error.strerror or error}.") from None


def _place(word: str | None) -> CheckpointPlace:
    if word is not None and "://" in word:
        storage = open_storage(word)
        return CheckpointPlace(storage.url, storage)  # `word` may contain a password, and `url` has none
    path = Path(word).expanduser() if word is not None else None
    if path is not None and path.is_dir():
        if layout.step_of(path.name) is not None:
            step = layout.step_of(path.name)
            return replace(_folder(path.absolute().parent), which=str(step))
        if any(layout.step_of(name) is not None for name in _names(path)) or _owner(path) is not None:
            return _folder(path)
    try:
        run = find_run(word)
    except RunError:
        if path is None or not path.is_dir():
            raise
        raise RunError(
            f"{word}: neither a run folder nor a folder of checkpoints: it has no config.yaml and no step_* folders. "
            "Name one of these."
        ) from None
    name = shown_path(run.path)
    return CheckpointPlace(name, open_storage(url_of(run)), run)


def _folder(path: Path) -> CheckpointPlace:
    return CheckpointPlace(shown_path(path), open_storage(path), _owner(path))


def _owner(path: Path) -> RunDir | None:
    """Returns the run that owns this checkpoints/ folder; None if no run owns the folder."""
    run = RunDir(path.absolute().parent)
    return run if run.checkpoints == path.absolute() and run.config.exists() else None


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}.") from None


def url_of(run: RunDir) -> str:
    """Returns the run's checkpoint.url, from the submitted config. A relative URL is relative to the folder where the
    ranks run."""
    if not run.config.exists():
        return str(run.checkpoints)
    from clusterdp.config import read_resolved

    try:
        saving = read_resolved(run.config).get("checkpoint") or {}
        url = saving.get("url")
    except Exception as error:  # not YAML, or not a config
        raise RunError(f"{shown_path(run.config)}: {_why_not(error)}. Name the checkpoints' folder.") from None
    if not url:
        return str(run.checkpoints)
    url = str(url)
    if "://" in url or os.path.isabs(url):
        return url
    submitted = (event["dir"] for event in read_events(run) if event.get("dir"))
    base = run.code if run.code.is_dir() else Path(next(submitted, "."))
    return str(base / url)


def _why_not(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return "is not the config of a run"
