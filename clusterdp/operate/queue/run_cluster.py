"""Which cluster the jobs of a run are on: the Slurm here, or a fake one in a folder of this machine.

Job ids mean nothing on another cluster: one of a fake's must never be cancelled in a real Slurm's queue. Therefore a
run names its cluster, by the SLURM_CONF that `submit` had; empty means the default one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import read_ledger

DEFAULT_CONF = "/etc/slurm/slurm.conf"  # where Slurm's clients look if SLURM_CONF is not set
# The files of a fake cluster beside its slurm.conf (fakeslurm/paths.py): its commands, a file that marks it as one, and
# one that is there as long as it is up.
BIN, MARK, UP = "bin", "state/shape.json", "up"


def is_here(cluster: str) -> bool:
    """Whether the squeue on PATH is that cluster's."""
    import shutil  # not needed where a run is over, and `status` should start at once

    here = os.environ.get("SLURM_CONF", DEFAULT_CONF)
    return shutil.which("squeue") is not None and (cluster or DEFAULT_CONF) == here


def is_gone(cluster: str) -> bool:
    """A fake cluster that is down took its jobs with it; most often its folder is gone as well."""
    conf = Path(cluster)
    if not conf.is_absolute():
        return False
    return _missing(conf) or (not _missing(conf.parent / MARK) and _missing(conf.parent / UP))


def put_on_path(run: RunDir) -> None:
    """If the run is on a fake cluster that is up here, and is ours, this process uses that cluster's commands. The user
    may have put them on the PATH of another terminal only."""
    events, _ = read_ledger(run)
    os.environ.update(_environ_of(str(next((e["cluster"] for e in reversed(events) if e.get("cluster")), ""))))


@contextmanager
def commands_of(cluster: str) -> Iterator[None]:
    """Within it, the same for a cluster: for who asks about runs on several. No other thread may ask meanwhile."""
    before = dict(os.environ)
    os.environ.update(_environ_of(cluster))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _environ_of(cluster: str) -> dict[str, str]:
    if is_here(cluster) or is_gone(cluster) or not os.path.isabs(cluster):
        return {}
    folder = Path(os.path.realpath(os.path.dirname(cluster)))
    if _missing(folder / MARK) or not _is_ours(folder):
        return {}
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{folder / BIN}{os.pathsep}{path}", "SLURM_CONF": cluster}


def _is_ours(folder: Path) -> bool:
    """Whether only we can have put these commands there, and nobody else can replace them: they run as us."""
    us = os.getuid()
    try:
        own = [each.lstat() for each in (folder, folder / BIN)]
        above = [each.lstat() for each in folder.parents]
    except OSError:
        return False
    private = all(stat.S_ISDIR(s.st_mode) and s.st_uid == us and not s.st_mode & 0o022 for s in own)
    return private and all(s.st_uid in (0, us) and (not s.st_mode & 0o022 or s.st_mode & stat.S_ISVTX) for s in above)


def _missing(path: Path) -> bool:
    """Whether there is no such file. A file that may not be looked at (another user's) is not missing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
