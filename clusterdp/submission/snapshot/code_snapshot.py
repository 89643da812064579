"""Takes the snapshot of the submit directory. Every attempt runs the snapshot: later edits and checkouts have no
effect.

In a git work tree the snapshot has the files that git tracks, and untracked files that git does not ignore. Elsewhere
the snapshot has all files except the files below hidden folders, caches and virtual environments.
"""

from __future__ import annotations

import filecmp
import itertools
import json
import os
import re
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from clusterdp.config.tree import SnapshotConfig
from clusterdp.errors import ConfigError
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir
from clusterdp.submission.snapshot.copied_files import copy_files, find_earlier, snapshot_of
from clusterdp.submission.snapshot.sent_project import check_whole, sent_project
from clusterdp.wording import some_of

MIB = 1 << 20
LARGE = 5_000_000  # bytes
# Limits of a search in ignored files: names that git lists, files in all folders, and files in one folder. A million
# ignored images would take too long.
MOST_NAMES, MOST_FILES, MOST_OF_A_FOLDER = 2_000, 2_000, 200
SHOWN = 6
SUFFIXES = frozenset(
    ".bin .pt .pth .ckpt .npy .npz .parquet .h5 .hdf5 .csv .tsv .jsonl .pkl .tar .tgz .zip .zst .safetensors .gguf "
    ".tfrecord .tfrecords .arrow .feather .lmdb .mdb .sqlite .mat .nc .so".split()
)
# Files that hold secrets, by their names (after the rules of gitleaks and detect-secrets), or, if PEM, by their content
SECRETS = re.compile(
    r"\.env(?:\.(?!example|sample|template|dist)[\w.-]+)?|[._]netrc|\.(?:pypirc|pgpass|npmrc|my\.cnf|boto|s3cfg|htpasswd)"
    r"|\.git-credentials|\.dockercfg|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|.*\.(?:p12|pfx|jks|keystore|ppk|kdbx)"
    r"|(?:kaggle|credentials|(?:.*[-_.])?client_secrets?.*|(?:.*[-_.])?service[-_]account.*)\.json"
    r"|(?:[\w.-]*[._-])?(?:token|secrets?|password|passwd|api[-_]?key)(?:\.(?:txt|json|ya?ml|toml|ini|key))?",
    re.IGNORECASE,
)
PEM = (".pem", ".key", ".crt", ".cer")


@dataclass(frozen=True)
class CodeSnapshot:
    """The facts about a snapshot that was taken."""

    files: int
    bytes: int
    copied: int  # number of files that are not links to files of an earlier run
    ignored: tuple[Ignored, ...] = ()  # files that are not in the snapshot, but that the job may need
    secret: tuple[str, ...] = ()  # files that were left out because they hold secrets

    def __str__(self) -> str:
        """Returns one or two lines that describe the snapshot to the user."""
        shared = f", {self.files - self.copied} of them shared with an earlier run" * (self.copied < self.files)
        said = [f"Snapshot of the code: {self.files} files, {self.bytes / 1e6:.1f} MB{shared}"]
        if self.secret:
            names = some_of([_written(name) for name in self.secret], SHOWN)
            said += [f"Not in it, for secrets: {names}. If the job needs one: launch.secret_files, or snapshot.link"]
        return "\n".join([*said, in_words(self.ignored)] if self.ignored else said)


class ChosenFiles(NamedTuple):
    """The files of a snapshot. `files` maps each relative name to its lstat."""

    files: Mapping[str, os.stat_result]
    linked: Sequence[str]  # paths of snapshot.link
    secret: tuple[str, ...]
    bytes: int


def take(
    source: Path, target: Path, limits: SnapshotConfig, leave_out: Path, secrets: Collection[str] = ()
) -> CodeSnapshot:
    """Makes `target`, and copies `source` into it, without files below `leave_out`, files of runs, and the files that
    `secrets` names.

    The files of the snapshot are read-only. A file that has not changed since the previous run is a hard link to that
    run's file. The link takes no space and no time, and each run keeps the file when the other run is removed."""
    chosen = choose(source, limits, leave_out, secrets)
    target.mkdir(parents=True)
    copied = copy_files(source, target, chosen.files, find_earlier(target.parent))
    for link in chosen.linked:
        _link(source, target, link)
    ignored = tuple(find_ignored(source, chosen.linked))
    return CodeSnapshot(len(chosen.files), chosen.bytes, copied, ignored, chosen.secret)


def choose(
    source: Path, limits: SnapshotConfig, leave_out: Path | None = None, secrets: Collection[str] = ()
) -> ChosenFiles:
    """Returns the files of `source` that a snapshot has. Raises ConfigError if they are too large. The arguments are
    those of take()."""
    check_whole(source)
    inside = leave_out.relative_to(source).as_posix() + "/" if leave_out and source in leave_out.parents else None
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
    secret = tuple(name for name, status in found.items() if stat.S_ISREG(status.st_mode) and is_secret(source / name))
    for name in secret:
        del found[name]
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
    return ChosenFiles(found, linked, secret, total)


def is_secret(path: Path) -> bool:
    """Returns whether a file holds secrets, which the run folder would show to others."""
    if path.name.lower().endswith(PEM):
        with suppress(OSError):
            return b"PRIVATE KEY-----" in read_plain(path, 64 * 1024)
    return SECRETS.fullmatch(path.name) is not None


def take_over(old: RunDir, new: RunDir) -> CodeSnapshot:
    """Copies the snapshot of another run, without files that Python compiled or the program wrote there later: a new
    run would continue from such files."""
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
    """Returns whether a file is writable. This version of clusterdp makes files of a snapshot read-only; links always
    count as writable."""
    return bool(status.st_mode & 0o222)


def _all_files(code: Path) -> Iterator[tuple[str, str]]:
    """Yields (folder, name) of each file in a snapshot. A link to a folder counts as a file."""
    for folder, subfolders, files in os.walk(code):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
        yield from ((folder, name) for name in files)
        yield from ((folder, name) for name in subfolders if os.path.islink(os.path.join(folder, name)))


def changed_since(code: Path, source: Path) -> list[str]:
    """Returns the files of a snapshot that are now different in the submit directory, or missing there."""
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
    """Yields (relative name, lstat) of each file that belongs to the snapshot. Files of runs do not belong to the
    snapshot."""
    if (sent := sent_project()) and source == sent.folder:
        yield from ((name, os.lstat(source / name)) for name in sent.names)
        return
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
        except OSError:  # the file was deleted, but is still in git's index
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
            with suppress(OSError):  # the file was deleted just now
                yield str(path.relative_to(source)), path.lstat()


def _link(source: Path, target: Path, name: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"snapshot.link: {name!r} is outside the submit directory. Use its absolute path in code.")
    if not (source / name).exists():
        raise ConfigError(f"snapshot.link: {name!r} is not in {source}. Make it first, or correct the name.")
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).symlink_to((source / name).absolute())


@dataclass(frozen=True)
class Ignored:
    """A file or folder that git ignores. `name` is its relative name. `bytes` is its size, but only a lower bound if
    `more` is True."""

    name: str
    bytes: int
    more: bool = False


def find_ignored(source: Path, linked: Collection[str]) -> list[Ignored]:
    """Returns files that git ignores but that the job may need (data, weights, compiled modules), the largest first.
    Ignored files are not in the snapshot: without a warning, the job would fail only after its wait in the queue. The
    result is empty outside a git work tree, because git ignores no file there."""
    budget = iter(range(MOST_FILES))
    found: list[Ignored] = []
    for name in sorted(_git_ignores(source)):  # a folder comes before its files, and stands for all of them
        above = {name, *map(str, PurePath(name).parents)}
        covered = {*linked, *(one.name for one in found)}
        if not above.isdisjoint(covered) or any(part.startswith(".") for part in PurePath(name).parts):
            continue
        one = _look_at(source, name, itertools.islice(budget, MOST_OF_A_FOLDER))
        if one:
            found.append(one)
    return sorted(found, key=lambda one: (-one.bytes, one.name))


def in_words(ignored: Sequence[Ignored]) -> str:
    """Returns a message with the files' names, and with the config line that makes the files visible to the job."""
    some = ignored[:SHOWN]
    sizes = [f"{_written(one.name)} ({'over ' if one.more else ''}{one.bytes / 1e6:.1f} MB)" for one in some]
    rest = f" and {len(ignored) - SHOWN} more" if len(ignored) > SHOWN else ""
    link = ", ".join(_written(one.name) for one in some)
    return f"Not in it, for git ignores it: {', '.join(sizes)}{rest}. If the job needs it: snapshot: {{link: [{link}]}}"


def _git_ignores(source: Path) -> list[str]:
    """Returns the names that git ignores. A folder that is ignored as a whole is a single name, and git does not read
    the folder."""
    names = git_lists(source, "--others", "--ignored", "--exclude-standard", "--directory") or []
    return [name.rstrip("/") for name in names[:MOST_NAMES]]


def git_lists(source: Path, *options: str) -> list[str] | None:
    """Returns the names that `git ls-files` prints; None outside of a git work tree. Raises ConfigError if git fails in
    a work tree: a snapshot without git would have the files that git ignores, such as data and secrets."""
    try:
        git = ["git", "-C", str(source), "ls-files", "-z", *options]
        done = subprocess.run(git, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        said, remedy = f"git: {error.strerror}", "Put git on PATH"
    else:
        if done.returncode == 0:
            return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
        said, remedy = done.stderr.decode(errors="replace").strip().partition("\n")[0], f"See `git -C {source} status`"
        if "dubious ownership" in said:
            remedy = f"If you trust its owner: git config --global --add safe.directory '{tree_of(source)}'"
    if (tree := tree_of(source)) is None:
        return None
    raise ConfigError(
        f"snapshot: {tree} has a .git, but git does not list its files, and without git, ignored ones would be copied: "
        f"{said}. {remedy}, or set snapshot.enabled=false, which runs the job in the submit directory."
    )


def tree_of(source: Path) -> Path | None:
    """Returns the folder of .git for `source`, or the nearest one above it on the same file system, as git looks."""
    device = os.stat(source).st_dev
    for folder in (source, *source.parents):
        if os.stat(folder).st_dev != device:
            return None
        if os.path.lexists(folder / ".git"):
            return folder
    return None


def _look_at(source: Path, name: str, budget: Iterator[int]) -> Ignored | None:
    path = source / name
    try:
        status = path.stat()  # follows links: `data -> /scratch/me/data` counts as data
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        size = status.st_size
        return Ignored(name, size) if size >= LARGE or path.suffix in SUFFIXES else None
    if is_clutter(path) or is_run(path):
        return None
    size, is_data, more = _weighed(path, budget)
    return Ignored(name, size, more) if size >= LARGE or is_data or path.is_symlink() else None


def _weighed(top: Path, budget: Iterator[int]) -> tuple[int, bool, bool]:
    """Returns (bytes, whether some files are data, whether files were left out because the budget was used up)."""
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
    """Returns the name quoted for YAML, without characters that a terminal would interpret."""
    return name if re.fullmatch(r"[A-Za-z_][\w./-]*", name, re.ASCII) else json.dumps(name)


def is_clutter(folder: Path) -> bool:
    return (
        folder.name.startswith(".")
        or folder.name in {"__pycache__", "node_modules"}
        or (folder / "pyvenv.cfg").exists()
    )


def is_run(folder: Path) -> bool:
    """Returns whether `folder` is a run folder. `submit` writes the lock as the first file; run folders of older
    versions have only a script."""
    return (folder / "submits" / "000001").exists() or (folder / "job.sbatch").exists()
