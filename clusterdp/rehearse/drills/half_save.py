"""A save that is being written: the ranks of a run are stopped in the middle of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterdp.checkpoint.format.layout import step_of, token_of_file, token_of_manifest
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.not_landed import Inapplicable, Missed, TooQuick
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.file_use import is_best, is_checkpoint, is_mkstemp, moves_in, series_of
from clusterdp.rundir import Attempt
from clusterdp.rundir.names import names_in

GLANCE_S = 0.0003  # a small checkpoint is written within milliseconds


@dataclass(frozen=True)
class Half:
    """A save that is being written. path: of a file of it. words: how far it is."""

    path: Path
    size: int
    words: str


@dataclass(frozen=True)
class Caught:
    """pids: of all ranks, which stand still."""

    attempt: Attempt
    pids: list[int]
    half: Half


Look = Callable[[Scene], Half | None]


def stopped_in_a_save(scene: Scene, look: Look) -> Caught:
    """Stops all ranks while a save is half written. TooQuick if each save was over before."""
    deadline = time.monotonic() + 60 + 2 * scene.facts.took_s
    while True:
        try:
            scene.wait("a save", lambda: look(scene) is not None, deadline - time.monotonic(), GLANCE_S)
        except Missed as missed:
            if any(use.written or use.named for use in scene.facts.files.values()):
                raise TooQuick(str(missed), "each of its saves is over in a moment, so none can be cut off") from None
            raise
        attempt = scene.newest()
        pids = frozen(scene)
        if half := look(scene):
            return Caught(attempt, pids, half)
        scene.thaw(pids)


def stopped_in_or_after_a_save(scene: Scene) -> Caught:
    """Of a program of its own. A small file that is written in place, under the name that it keeps, is open too
    shortly: then the ranks are stopped when it has just been closed."""
    since = time.time()
    in_place = {series_of(path) for path, use in scene.facts.files.items() if use.in_place and not is_best(path)}

    def look(scene: Scene) -> Half | None:
        if half := half_of_theirs(scene):
            return half
        path, at = scene.files.last_written if scene.files else ("", 0.0)
        file = scene.run.code / path
        if at < since or series_of(path) not in in_place or not file.is_file():
            return None
        return Half(file, size := file.stat().st_size, f"had {size} bytes, and was just written")

    return stopped_in_a_save(scene, look)


def frozen(scene: Scene) -> list[int]:
    pids = scene.freeze()
    if not pids and not scene.cluster.ranks_are_here:
        raise Inapplicable("the ranks run on other machines, where they cannot be stopped")
    return pids


def half_of_ours(scene: Scene) -> Half | None:
    """Some bytes of it are there, and no manifest."""
    steps = [name for name in names_in(scene.run.checkpoints) if step_of(name) is not None]
    if not steps:
        return None
    newest = max(steps, key=lambda name: step_of(name) or 0)
    folder = scene.run.checkpoints / newest
    names = names_in(folder)
    whole = {token_of_manifest(name) for name in names}
    for name in names:
        token = token_of_file(name)
        if token is not None and token not in whole and token_of_manifest(name) is None:
            with suppress(OSError):
                if size := (folder / name).stat().st_size:
                    return Half(folder / name, size, f"had {size} bytes, and no manifest")
    return None


def half_of_theirs(scene: Scene) -> Half | None:
    """A rank has a file like a checkpoint open for writing. A model that is kept for its score is none to resume from,
    so it is one of those only if there are no others."""
    files = scene.facts.files
    temporary, all_best = moves_in(files), all(is_best(path) for path in files)
    pids = [pid for pids in scene.live.ranks().values() for pid in pids]
    for file in processes.written_files(pids):
        looks = is_checkpoint(file.path) or (temporary and is_mkstemp(file.path))
        if file.size and looks and (all_best or not is_best(file.path)):
            return Half(Path(file.path), file.size, f"had {file.size} bytes, and was open")
    return None
