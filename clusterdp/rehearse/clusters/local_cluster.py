"""LocalCluster: a fake cluster for one run, whose commands come first on PATH while it is up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core import file_traps, node_folders, processes
from clusterdp.fakeslurm.core.paths import private_place
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.rehearse.observe.file_events import FileEvents

SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # variables with folders of programs and libraries
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "UV_CACHE_DIR", "XDG_DATA_HOME")


class LocalCluster(FakeCluster):
    """A DrillCluster on this machine. Each node has a /tmp of its own if the machine allows mounts. `shared`: folders
    below /tmp, ... that all nodes see. `sees_bytes`: see FileEvents.
    """

    ranks_are_here = True
    restart_s = 120.0

    def __init__(self, *, shape: Shape, shared: Iterable[Path], sees_bytes: bool = False):
        self._shared = [*shared]
        self._node_local = node_folders.possible()
        self.file_events = None
        if file_traps.possible():
            self.file_events = FileEvents(private_place() / f"{token_hex(4)}.traps", sees_bytes=sees_bytes)
            traps = str(self.file_events.socket)
            shape = replace(shape, settings=replace(shape.settings, file_traps=traps))
        processes.adopt_orphans()  # ranks are searched below this process; Yama lets only an ancestor read their memory
        super().__init__(shape=shape, node_local=self._node_local, shared=self._shared)

    def __enter__(self) -> LocalCluster:
        super().__enter__()
        os.environ.update(self.environ())
        return self

    def down(self) -> None:
        super().down()
        if self.file_events:
            self.file_events.close()

    def wrongly_shared(self, files: Iterable[str]) -> list[str]:
        if self._node_local:
            return []
        common = (self.folder, *self._shared)
        places = node_folders.own_places(common, os.environ.get("TMPDIR", ""))
        return [file for file in files if _is_below(file, places) and not _is_below(file, common)]

    def submitted(self, job: str) -> None:
        """Does nothing, because each fault names its job or concerns the whole cluster."""

    def start_soon(self) -> None:
        """Does nothing, because the controller is quick."""

    def causes_of(self, causes: Sequence[str]) -> tuple[str, ...]:
        return tuple(causes)


def shared_folders(values: dict[str, Any], *folders: str) -> list[Path]:
    """Returns the folders that the nodes of a real cluster share:

    `folders`, the user's home, interpreter, libraries and caches, and each folder that the config names and that exists
    before the run.
    """
    searched = [path for name in SEARCHED for path in os.environ.get(name, "").split(os.pathsep)]
    named = [*folders, str(Path.home()), sys.prefix, *searched, *(os.environ.get(name, "") for name in CACHES)]
    there = [Path(path) for path in (*named, *_texts(values)) if os.path.isabs(path)]
    return [folder for folder in there if folder not in (Path("/"), *node_folders.PLACES) and folder.is_dir()]


def _is_below(file: str, folders: Iterable[Path]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
