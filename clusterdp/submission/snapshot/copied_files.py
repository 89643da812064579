"""The files of a snapshot: read-only copies, or hard links to the previous run's files if a file has not changed."""

from __future__ import annotations

import filecmp
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterdp.plainfile import open_plain
from clusterdp.rundir import is_sweep

# A file that was edited while the earlier snapshot was taken may have changed again within the same tick of a file
# server's clock. Therefore files that were edited shortly before the earlier snapshot are compared byte by byte.
RECENT_NS = 60 * 10**9
LOOKED_AT = 50  # run folders without a time in their names that are looked at
CHUNK = 1 << 20  # bytes
SUBMITTED = re.compile(r"-(\d{8}-\d{6})-[0-9a-f]{4}$")


@dataclass(frozen=True)
class Earlier:
    """The snapshot of an earlier run, and the time when it was taken."""

    code: str
    taken_ns: int


def find_earlier(run: Path, name: str = "code") -> Earlier | None:
    """Returns the newest snapshot among the run folders beside `run`. Only a few run folders are looked at, because
    there may be thousands. `name` is the copied folder in a run."""
    with suppress(OSError):
        names = [each for each in os.listdir(run.parent) if each != run.name]
        dated = sorted((found[1], each) for each in names if (found := SUBMITTED.search(each)))
        others = [each for each in names if not SUBMITTED.search(each)]
        looked_at = [*(each for _, each in dated[-1:]), *others[:LOOKED_AT]]
        there = [one for each in looked_at if (one := snapshot_of(run.parent / each, name))]
        return max(there, key=lambda one: one.taken_ns, default=None)
    return None


def snapshot_of(run: Path, name: str = "code") -> Earlier | None:
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(run / name).st_mode):
            last = "sweep.json" if is_sweep(run) else "config.yaml"
            return Earlier(str(run / name), os.stat(run / last).st_mtime_ns)
    return None


def copy_files(source: Path, target: Path, files: Mapping[str, os.stat_result], earlier: Earlier | None) -> int:
    """Copies or links files from `source` to `target`. `files` maps the relative name of each file to its lstat.

    Returns the number of files that were copied, not linked. A symbolic link stays a link. Sockets, pipes and devices
    are left out.
    """
    above, below = f"{source}/", f"{target}/"
    made: set[str] = set()
    copied = 0
    for name, status in files.items():
        folder = name.rpartition("/")[0]
        if folder not in made:
            os.makedirs(below + folder, exist_ok=True)
            made.add(folder)
        if stat.S_ISREG(status.st_mode):
            if not (earlier and _linked(above + name, status, f"{earlier.code}/{name}", earlier, below + name)):
                _copy(above + name, status, below + name)
                copied += 1
        elif stat.S_ISLNK(status.st_mode):
            _copy_link(source / name, target / name)
    return copied


def _linked(path: str, status: os.stat_result, earlier: str, snapshot: Earlier, target: str) -> bool:
    """Links the earlier run's file if it is the same and belongs to this user, because its owner could change it.
    Returns whether the file was linked."""
    try:
        old = os.lstat(earlier)
        if not (
            stat.S_ISREG(old.st_mode)
            and old.st_uid == os.getuid()
            and (old.st_size, old.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
            and old.st_mode & 0o111 == status.st_mode & 0o111
        ):
            return False
        if status.st_mtime_ns > snapshot.taken_ns - RECENT_NS and not filecmp.cmp(path, earlier, shallow=False):
            return False
        if old.st_mode & 0o222:  # an older version of clusterdp left its files writable
            os.chmod(earlier, stat.S_IMODE(old.st_mode) & ~0o222)
        os.link(earlier, target)
    except OSError:  # on another file system, with too many links, or if just deleted
        return False
    return True


def _copy(path: str, status: os.stat_result, target: str) -> None:
    """Copies a small file. shutil.copy2() makes twice as many system calls, and most files of a program are small."""
    mode = stat.S_IMODE(status.st_mode) & ~0o7222
    source = open_plain(path)
    try:
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            while data := memoryview(os.read(source, CHUNK)):
                while data:
                    data = data[os.write(made, data) :]
            os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fchmod(made, mode)  # sets the mode independently of the umask
        finally:
            os.close(made)
    finally:
        os.close(source)


def _copy_link(source: Path, target: Path) -> None:
    """Copies a symbolic link. A link to a place outside the snapshot must keep its target; a link within the snapshot
    stays relative."""
    leads_to = source.readlink()
    inside = not leads_to.is_absolute() and ".." not in leads_to.parts
    target.symlink_to(leads_to if inside else os.path.normpath(source.parent / leads_to))
