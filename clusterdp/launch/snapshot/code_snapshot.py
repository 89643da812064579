"""The snapshot of the submit directory: what every attempt runs, whatever is edited or checked out in the meantime.

In a git work tree: the files that git tracks, and those it does not track but does not ignore either. Elsewhere: all
files but those below hidden folders, caches and virtual environments.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from clusterdp.config.tree import SnapshotConfig
from clusterdp.errors import ConfigError
from clusterdp.launch.snapshot.copied_files import copy_files, find_earlier, snapshot_of
from clusterdp.launch.snapshot.excluded_folders import is_clutter, is_run
from clusterdp.launch.snapshot.git_ignored import Ignored, find_ignored, git_lists, in_words
from clusterdp.rundir import RunDir

MIB = 1 << 20


@dataclass(frozen=True)
class CodeSnapshot:
    """A snapshot that was taken. `ignored`: files that are not in it, and may be missed."""

    files: int
    bytes: int
    copied: int  # files that are no links to those of an earlier run
    ignored: tuple[Ignored, ...] = ()

    def __str__(self) -> str:
        """For people, in a line or two."""
        shared = f", {self.files - self.copied} of them shared with an earlier run" * (self.copied < self.files)
        said = f"Snapshot of the code: {self.files} files, {self.bytes / 1e6:.1f} MB{shared}"
        return "\n".join([said, in_words(self.ignored)] if self.ignored else [said])


def take(
    source: Path, target: Path, limits: SnapshotConfig, leave_out: Path, secrets: Collection[str] = ()
) -> CodeSnapshot:
    """Copy `source` to `target` (made here), without what is below `leave_out`, without runs, and without the files
    that `secrets` names.

    The files are read-only. What has not changed since the run before is a hard link to that run's file: it takes no
    space and no time, and each run keeps its own when the other is removed.
    """
    inside = leave_out.relative_to(source).as_posix() + "/" if source in leave_out.parents else None
    hidden = {os.path.relpath(os.path.realpath(path), os.path.realpath(source)) for path in secrets}
    links = {link.rstrip("/") for link in limits.link}
    linked = sorted(link for link in links if links.isdisjoint(map(str, PurePath(link).parents)))  # the outermost
    found = {
        name: status
        for name, status in sorted(list_files(source))
        if not (inside and name.startswith(inside))
        and name not in hidden
        and not any(name == link or name.startswith(link + "/") for link in linked)
    }
    sizes = {name: status.st_size if stat.S_ISREG(status.st_mode) else 0 for name, status in found.items()}
    total = sum(sizes.values())
    if total > limits.max_mb * MIB:
        biggest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        shown = ", ".join(f"{name} ({sizes[name] / MIB:.0f} MB)" for name in biggest)
        raise ConfigError(
            f"snapshot.max_mb: {source} has {total / MIB:.0f} MB in {len(found)} files, more than {limits.max_mb}: "
            f"{shown}. "
            "Let git ignore them, name them in snapshot.link (linked, not copied), or raise snapshot.max_mb."
        )
    target.mkdir(parents=True)
    copied = copy_files(source, target, found, find_earlier(target.parent))
    for link in linked:
        _link(source, target, link)
    return CodeSnapshot(len(found), total, copied, tuple(find_ignored(source, linked)))


def take_over(old: RunDir, new: RunDir) -> CodeSnapshot:
    """The snapshot of another run, without what Python has compiled in it since, and what the program has left there:
    a new run would go on from that."""
    snapshot = snapshot_of(old.path)
    found: dict[str, os.stat_result] = {}
    for folder, name in _all_files(old.code):
        path = Path(folder, name)
        status = os.lstat(path)
        if not (snapshot and _is_writable(status) and status.st_mtime_ns > snapshot.taken_ns):
            found[str(path.relative_to(old.code))] = status
    new.code.mkdir()
    copied = copy_files(old.code, new.code, found, snapshot)
    total = sum(status.st_size for status in found.values() if stat.S_ISREG(status.st_mode))
    return CodeSnapshot(len(found), total, copied)


def _is_writable(status: os.stat_result) -> bool:
    """As no file of a snapshot is that this version has taken. A link is, to whoever may write its folder."""
    return bool(status.st_mode & 0o222)


def _all_files(code: Path) -> Iterator[tuple[str, str]]:
    """(folder, name). A link to a folder counts as a file."""
    for folder, subfolders, files in os.walk(code):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
        yield from ((folder, name) for name in files)
        yield from ((folder, name) for name in subfolders if os.path.islink(os.path.join(folder, name)))


def changed_since(code: Path, source: Path) -> list[str]:
    """The files of a snapshot that are others in the submit directory now, or gone from it."""
    found = []
    for folder, _, files in os.walk(os.path.realpath(code)):
        for name in files:
            taken = Path(folder, name)
            relative = taken.relative_to(os.path.realpath(code))
            try:
                same = taken.is_symlink() or filecmp.cmp(taken, source / relative)
            except OSError:
                same = False
            if not same:
                found.append(str(relative))
    return sorted(found)


def list_files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(relative name, lstat) of each file of the snapshot. Files of runs do not belong to it."""
    listed = git_lists(source, "--cached", "--others", "--exclude-standard")
    if listed is None:
        yield from _walk(source)
        return
    names = set(listed)
    folders = {folder for name in {os.path.dirname(name) for name in names} for folder in _with_parents(name)}
    runs = {folder for folder in folders if is_run(source / folder)}
    above = f"{source}/"
    for name in names:
        if runs and not runs.isdisjoint(PurePath(name).parents):
            continue
        try:
            status = os.lstat(above + name)
        except OSError:  # it is deleted, but still in the index
            continue
        if stat.S_ISDIR(status.st_mode):  # a submodule
            yield from ((f"{name.rstrip('/')}/{each}", found) for each, found in list_files(source / name))
        else:
            yield name, status


def _with_parents(folder: str) -> Iterator[PurePath]:
    path = PurePath(folder)
    yield from (each for each in (path, *path.parents) if each.name)


def _walk(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, subfolders, files in os.walk(source):
        paths = {name: Path(folder, name) for name in subfolders}
        subfolders[:] = [name for name, path in paths.items() if not is_clutter(path) and not is_run(path)]
        for path in (Path(folder, name) for name in files):
            with suppress(OSError):  # it has just gone
                yield str(path.relative_to(source)), path.lstat()


def _link(source: Path, target: Path, name: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"snapshot.link: {name!r} is outside the submit directory. Use its absolute path in code.")
    if not (source / name).exists():
        raise ConfigError(f"snapshot.link: {name!r} is not in {source}. Make it first, or correct the name.")
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).symlink_to((source / name).absolute())
