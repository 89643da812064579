"""Files that git ignores and the job may need all the same: data, weights, compiled modules. They are not in the
snapshot. `submit` names them, or the job would find out only after its wait in the queue."""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from clusterdp.launch.snapshot.excluded_folders import is_clutter, is_run

LARGE = 5_000_000  # bytes
# At most this many names from git, and files in those folders, are looked at: a million ignored images take too long.
MOST_NAMES, MOST_FILES, MOST_OF_A_FOLDER = 2_000, 2_000, 200
SHOWN = 6
SUFFIXES = frozenset(
    ".bin .pt .pth .ckpt .npy .npz .parquet .h5 .hdf5 .csv .tsv .jsonl .pkl .tar .tgz .zip .zst .safetensors .gguf "
    ".tfrecord .tfrecords .arrow .feather .lmdb .mdb .sqlite .mat .nc .so".split()
)


@dataclass(frozen=True)
class Ignored:
    """An ignored file or folder. `name`: its relative name. `bytes`: a lower bound if `more`."""

    name: str
    bytes: int
    more: bool = False


def find_ignored(source: Path, linked: Collection[str]) -> list[Ignored]:
    """The largest first. Nothing outside a git work tree, for nothing is ignored there."""
    budget = iter(range(MOST_FILES))
    found: list[Ignored] = []
    for name in sorted(_git_ignores(source)):  # a folder before what is in it, which comes with it
        above = {name, *map(str, PurePath(name).parents)}
        covered = {*linked, *(one.name for one in found)}
        if not above.isdisjoint(covered) or any(part.startswith(".") for part in PurePath(name).parts):
            continue
        one = _look_at(source, name, itertools.islice(budget, MOST_OF_A_FOLDER))
        if one:
            found.append(one)
    return sorted(found, key=lambda one: (-one.bytes, one.name))


def in_words(ignored: Sequence[Ignored]) -> str:
    """A message with their names, and with the line for the config that brings them into the job."""
    some = ignored[:SHOWN]
    sizes = [f"{_written(one.name)} ({'over ' if one.more else ''}{one.bytes / 1e6:.1f} MB)" for one in some]
    rest = f" and {len(ignored) - SHOWN} more" if len(ignored) > SHOWN else ""
    link = ", ".join(_written(one.name) for one in some)
    return f"Not in it, for git ignores it: {', '.join(sizes)}{rest}. If the job needs it: snapshot: {{link: [{link}]}}"


def _git_ignores(source: Path) -> list[str]:
    """A folder that is ignored as a whole is one name, and git does not look into it."""
    names = git_lists(source, "--others", "--ignored", "--exclude-standard", "--directory") or []
    return [name.rstrip("/") for name in names[:MOST_NAMES]]


def git_lists(source: Path, *options: str) -> list[str] | None:
    """The names that `git ls-files` gives; None outside a work tree, and where there is no git."""
    try:
        git = ["git", "-C", str(source), "ls-files", "-z", *options]
        done = subprocess.run(git, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return None
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else None


def _look_at(source: Path, name: str, budget: Iterator[int]) -> Ignored | None:
    path = source / name
    try:
        status = path.stat()  # of the link's target: `data -> /scratch/me/data` counts as data
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        size = status.st_size
        return Ignored(name, size) if size >= LARGE or path.suffix in SUFFIXES else None
    if is_clutter(path) or is_run(path):
        return None
    size, is_data, more = _walk(path, budget)
    return Ignored(name, size, more) if size >= LARGE or is_data or path.is_symlink() else None


def _walk(top: Path, budget: Iterator[int]) -> tuple[int, bool, bool]:
    """(bytes, whether there is data among them, whether the budget ended before the files did)"""
    size, is_data, todo = 0, False, [top]
    while todo:
        try:
            entries = os.scandir(todo.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                if next(budget, None) is None:
                    return size, is_data, True
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    if not is_clutter(path) and not is_run(path):
                        todo.append(path)
                elif entry.is_file():
                    size += entry.stat().st_size
                    is_data |= path.suffix in SUFFIXES
    return size, is_data, False


def _written(name: str) -> str:
    """As it stands in YAML, and does no harm to a terminal."""
    return name if re.fullmatch(r"[A-Za-z_][\w./-]*", name, re.ASCII) else json.dumps(name)
