"""The node-local folders of pretend nodes: each node has a /tmp, /var/tmp, /dev/shm and TMPDIR of its own, if
SlurmConf.node_local is set. A task sees the folders of its node through a mount namespace (mounts.py).

Shared folders below the node-local folders stay visible: SlurmConf.shared, the cluster's folder, the folders of the
Python interpreter, and the folder of this package.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from . import mounts
from .paths import Paths, check_private, private_place

MEMORY = Path("/dev/shm")
PLACES = (Path("/tmp"), Path("/var/tmp"), MEMORY)


def possible() -> bool:
    """Whether tasks can have node-local folders on this machine. A child process tries to make a mount namespace."""
    if sys.platform != "linux":
        return False
    trial = os.fork()
    if trial == 0:
        try:
            mounts.enter_namespace()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(trial, 0)[1] == 0


def enter(cluster: Path, node: str, shared: Iterable[str], tmpdir: str) -> None:
    """Shows the node's own folders to this process, which must have one thread, and to its child processes. Raises
    OSError if mounts are impossible. `tmpdir`: the task's TMPDIR, which becomes a folder of the node, too, unless it is
    shared.
    """
    paths, kept = Paths(cluster), _kept(cluster, shared)
    places = own_places(kept, tmpdir)
    mounts.enter_namespace()
    # The node's folders and shared folders are opened first, because mounts hide their paths.
    own = [(os.open(_backing(paths, node, place), os.O_PATH), place) for place in places]
    below = [folder for folder in kept if folder.is_dir() and any(place in folder.parents for place in places)]
    common = [(os.open(folder, os.O_PATH), folder) for folder in below]
    for folder, place in (*own, *common):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        mounts.bind(Path(f"/proc/self/fd/{folder}"), place)
        os.close(folder)


def path_of(cluster: Path, node: str, shared: Iterable[str], path: Path) -> Path:
    """Returns the machine's path of the file that the tasks of a node see at `path`."""
    kept = _kept(cluster, shared)
    if not any(path.is_relative_to(folder) for folder in kept):
        for place in own_places(kept):
            if path.is_relative_to(place):
                return _backing(Paths(cluster), node, place) / path.relative_to(place)
    return path


def _kept(cluster: Path, shared: Iterable[str]) -> list[Path]:
    package = Path(__file__).resolve().parents[1]  # for a package outside the interpreter's folders
    package = package.parent if (package.parent / "__init__.py").exists() else package  # clusterdp
    python = [Path(sys.prefix), Path(sys.base_prefix), package]
    return _outermost([*map(Path, shared), cluster, private_place(), *python])


def own_places(shared: Iterable[Path], tmpdir: str = "") -> list[Path]:
    """Returns the node-local folders, such as /tmp, without shared folders and folders below shared folders."""
    places = [*PLACES, *([Path(tmpdir)] if os.path.isabs(tmpdir) else [])]
    real = [place for place in places if place.is_dir() and not place.is_symlink()]
    return _outermost(place for place in real if not any(place.is_relative_to(folder) for folder in shared))


def wipe(paths: Paths, node: str) -> None:
    """Removes the node's folders. Tasks that have not died yet continue to write to the removed folders, not to new
    folders."""
    for base in (paths.node_folders, memory_of(paths)):
        if (base / node).is_dir():
            dead = tempfile.mkdtemp(prefix=".dead-", dir=base)
            (base / node).rename(Path(dead) / node)
            shutil.rmtree(dead, ignore_errors=True)


def remove(paths: Paths) -> None:
    """Removes the node-local folders of all nodes."""
    for base in (paths.node_folders, memory_of(paths)):
        shutil.rmtree(base, ignore_errors=True)


def _backing(paths: Paths, node: str, place: Path) -> Path:
    """Returns the machine's folder that the node sees at `place`.

    The folder for /dev/shm is in memory, too, because an older C library accepts no other kind of folder there.
    """
    base = memory_of(paths) if place == MEMORY else paths.node_folders
    base.mkdir(mode=0o700, exist_ok=True)
    check_private(base)
    folder = base / node / str(place).strip("/").replace("/", "_")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def memory_of(paths: Paths) -> Path:
    """Returns the folder on this machine that has the /dev/shm of all nodes."""
    return MEMORY / f"clusterdp-{os.getuid()}-{paths.digest}"


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Returns the folders that are not below another of these folders."""
    unique = list(dict.fromkeys(folders))
    return [folder for folder in unique if not any(other in folder.parents for other in unique)]
