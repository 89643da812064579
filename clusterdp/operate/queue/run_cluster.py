"""Finds the cluster of a run's jobs: the Slurm of this machine, or a fake cluster in one of its folders.

A job id has no meaning on another cluster: a fake cluster's job must never be cancelled in a real Slurm's queue.
Therefore the run's records name the cluster by the value of SLURM_CONF at the submit, and by the name in sbatch's
answer (see home_of()). An empty value means the default cluster."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import read_ledger
from clusterdp.slurm.jobid import cluster_in, set_clusters

DEFAULT_CONF = "/etc/slurm/slurm.conf"  # the file that Slurm's clients read if SLURM_CONF is not set
# The files of a fake cluster beside its slurm.conf (fakeslurm/paths.py): its commands, a file that marks the cluster as
# fake, and a file that exists while the cluster is up
BIN, MARK, UP = "bin", "state/shape.json", "up"


def is_here(cluster: str) -> bool:
    """Returns whether the squeue on PATH belongs to this cluster."""
    here = (os.environ.get("SLURM_CONF", DEFAULT_CONF), os.environ.get("SLURM_CLUSTERS", ""))
    if (_conf_of(cluster) or DEFAULT_CONF, cluster_in(cluster)) != here:
        return False
    import shutil  # late import: `status` of a finished run must start fast

    return shutil.which("squeue") is not None


def _conf_of(cluster: str) -> str:
    return cluster.partition(";")[0]


def is_gone(cluster: str) -> bool:
    """Returns whether the cluster is a fake one that is down: its jobs are gone, and usually its folder is gone,
    too."""
    conf = Path(_conf_of(cluster))
    if not conf.is_absolute():
        return False
    return _missing(conf) or (not _missing(conf.parent / MARK) and _missing(conf.parent / UP))


def put_on_path(run: RunDir) -> None:
    """Makes this process ask the run's cluster. If the cluster is the user's own fake cluster and is up, its commands
    are put on the PATH: the user may have put them only on the PATH of another terminal."""
    events, _ = read_ledger(run)
    _ask(str(next((e["cluster"] for e in reversed(events) if "cluster" in e), "")))


@contextmanager
def commands_of(cluster: str) -> Iterator[None]:
    """In the body of the with statement, this process uses the Slurm commands of `cluster`. Meanwhile, no other thread
    may call Slurm."""
    before = dict(os.environ)
    _ask(cluster)
    try:
        yield
    finally:
        # Only what has changed: other threads may read the environment, as for TZ, at the same time.
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before.items() - os.environ.items())


def _ask(cluster: str) -> None:
    set_clusters(cluster_in(cluster))
    conf = _conf_of(cluster)
    if not os.path.isabs(conf) or is_here(cluster) or is_gone(cluster):
        return
    folder = Path(os.path.realpath(os.path.dirname(conf)))
    if _missing(folder / MARK) or not _is_ours(folder):
        return
    path = os.environ.get("PATH", os.defpath)
    os.environ.update(PATH=f"{folder / BIN}{os.pathsep}{path}", SLURM_CONF=conf)


def _is_ours(folder: Path) -> bool:
    """Returns whether only this user can have written these commands or can replace them. The check is needed because
    the commands run with the user's rights."""
    us = os.getuid()
    try:
        own = [each.lstat() for each in (folder, folder / BIN)]
        above = [each.lstat() for each in folder.parents]
    except OSError:
        return False
    private = all(stat.S_ISDIR(s.st_mode) and s.st_uid == us and not s.st_mode & 0o022 for s in own)
    return private and all(s.st_uid in (0, us) and (not s.st_mode & 0o022 or s.st_mode & stat.S_ISVTX) for s in above)


def _missing(path: Path) -> bool:
    """Returns whether the file does not exist. A file that cannot be examined, because it belongs to another user, is
    not missing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
