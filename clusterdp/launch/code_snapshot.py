"""The snapshot of the submit directory: what every attempt runs, whatever is edited or checked out in the meantime.

In a git work tree: the files that git tracks, and those it does not track but does not ignore either. Elsewhere: all
files but those below hidden folders, caches and virtual environments.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from clusterdp.config.tree import SnapshotConfig
from clusterdp.errors import ConfigError
from clusterdp.launch.excluded_folders import is_clutter, is_run
from clusterdp.launch.git_ignored import Ignored, find_ignored, git_lists

MIB = 1 << 20


@dataclass(frozen=True)
class CodeSnapshot:
    """A snapshot that was taken. `ignored`: files that are not in it, and may be missed."""

    files: int
    bytes: int
    ignored: tuple[Ignored, ...] = ()


def take(source: Path, target: Path, limits: SnapshotConfig, leave_out: Path) -> CodeSnapshot:
    """Copy `source` to `target` (made here), without what is below `leave_out`, and without runs."""
    names = sorted(name for name in list_files(source) if leave_out not in (source / name).parents)
    linked = [link.rstrip("/") for link in limits.link]
    names = [name for name in names if not any(name == link or name.startswith(link + "/") for link in linked)]
    sizes = {name: _size(source / name) for name in names}
    total = sum(sizes.values())
    if total > limits.max_mb * MIB:
        biggest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        shown = ", ".join(f"{name} ({sizes[name] / MIB:.0f} MB)" for name in biggest)
        raise ConfigError(
            f"snapshot.max_mb: {source} has {total / MIB:.0f} MB in {len(names)} files, more than {limits.max_mb}: "
            f"{shown}. "
            "Let git ignore them, name them in snapshot.link (linked, not copied), or raise snapshot.max_mb."
        )
    target.mkdir(parents=True)
    for name in names:
        _copy(source / name, target / name)
    for link in linked:
        _link(source, target, link)
    return CodeSnapshot(len(names), total, tuple(find_ignored(source, linked)))


def list_files(source: Path) -> list[str]:
    """The relative names of the files of the snapshot. Files of runs do not belong to it."""
    listed = git_lists(source, "--cached", "--others", "--exclude-standard")
    if listed is None:
        return list(_walk(source))
    names = set(listed)
    folders = {folder for name in names for folder in PurePath(name).parents if folder.name}
    runs = {folder for folder in folders if is_run(source / folder)}
    # Not what is deleted but still in the index.
    return [n for n in names if os.path.lexists(source / n) and runs.isdisjoint(PurePath(n).parents)]


def _walk(source: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(source):
        paths = {name: Path(folder, name) for name in subfolders}
        subfolders[:] = [name for name, path in paths.items() if not is_clutter(path) and not is_run(path)]
        for name in files:
            yield str(Path(folder, name).relative_to(source))


def _size(path: Path) -> int:
    status = path.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        # A link that leads out of the snapshot must go on leading where it leads; one inside stays relative.
        leads_to = source.readlink()
        inside = not leads_to.is_absolute() and ".." not in leads_to.parts
        target.symlink_to(leads_to if inside else os.path.normpath(source.parent / leads_to))
    elif source.is_file():
        shutil.copy2(source, target)
    elif source.is_dir():  # a submodule: git lists it as one name
        for name in list_files(source):
            _copy(source / name, target / name)


def _link(source: Path, target: Path, name: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"snapshot.link: {name!r} is outside the submit directory. Use its absolute path in code.")
    if not (source / name).exists():
        raise ConfigError(f"snapshot.link: {name!r} is not in {source}. Make it first, or correct the name.")
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).symlink_to((source / name).absolute())
