"""Drills on checkpoints: the newest checkpoint is damaged, or the disk is full during a save."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from clusterdp.checkpoint.format.layout import step_folder
from clusterdp.checkpoint.format.manifest import list_checkpoints
from clusterdp.fakeslurm.core.file_traps import WRITE
from clusterdp.rehearse.drills.losses import CRASHES
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.drills.strikes import EARLY, GLANCE_S, OPEN_S, Caught, caught_at, events_of, frozen, is_closed
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.file_events import FileEvent, FileEvents
from clusterdp.rehearse.observe.file_use import ONE_SAVE_S, is_checkpoint, series_of
from clusterdp.rehearse.observe.save_shape import own_name
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import read_events
from clusterdp.wording import counted

AFTER_S = 2.0  # seconds after which a failed save is over, if the program prints no steps
SAVES = 5  # maximum number of saves during which the disk is full, if the checkpoints are not ours


def _shown(scene: Scene, path: Path) -> str:
    for base in (scene.run.code, scene.run.path):
        with suppress(ValueError):
            return str(path.relative_to(base))
    return str(path)


def newest_checkpoint_damaged(scene: Scene) -> None:
    """Flips a bit of the newest checkpoint while all ranks stand still, and then kills the ranks."""
    if not scene.is_ours:
        _damage_theirs(scene)
        return
    scene.wait("two checkpoints", lambda: len(list_checkpoints(scene.run.checkpoints)) > 1, scene.patience_s)
    attempt, pids = scene.newest(), frozen(scene)
    newest = list_checkpoints(scene.run.checkpoints)[-1]
    folder = scene.run.checkpoints / step_folder(newest.step)
    data = min(folder.glob(f"{newest.token}-[nr]0000*.safetensors"), key=lambda path: "local" in path.name)
    at = scene.dice.randrange(data.stat().st_size)
    with data.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    scene.kill(pids)
    evidence = f"a bit of byte {at} of {folder.name}/{data.name} flipped, and all ranks got SIGKILL"
    scene.hit(evidence, *CRASHES, attempt=attempt)


def _damage_theirs(scene: Scene) -> None:
    """Cuts the newest of several checkpoints to half its size. Of a checkpoint with several files, cuts the last
    written file."""

    def two() -> bool:
        return len(_checkpoints_of(scene)) > 1

    if not any(map(is_checkpoint, scene.facts.written)) and not scene.facts.files:
        raise NotPossibleHere("no checkpoint of this program is known")
    try:
        scene.wait("two checkpoints", two, scene.facts.took_s * 2)
    except Missed:
        raise NotPossibleHere("the program keeps one checkpoint, so there is no older one to go back to") from None
    attempt, pids = scene.newest(), frozen(scene)
    newest = _checkpoints_of(scene)[-1][-1]
    size = newest.stat().st_size
    os.truncate(newest, size // 2)
    scene.kill(pids)
    name = _shown(scene, newest)
    words = f"{name} was cut to {size // 2} of {size} bytes, and all ranks got SIGKILL"
    scene.hit(words, *CRASHES, attempt=attempt, file=name)


def _checkpoints_of(scene: Scene) -> list[list[Path]]:
    """Returns the files of each checkpoint, oldest first, of the series of file names that has most saves."""
    groups: dict[str, list[Path]] = {}
    made = {series_of(path) for path, use in scene.facts.files.items() if use.written or use.named}  # others are data
    for base, folders, names in os.walk(scene.run.code):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            path = Path(base, name)
            series = series_of(str(path.relative_to(scene.run.code)))
            if series in made and size_of(path):
                groups.setdefault(series, []).append(path)
    apart_s = max(ONE_SAVE_S, scene.facts.save_every_s / 2)
    return max((by_save(paths, apart_s) for paths in groups.values()), key=len, default=[])


def disk_full_while_saving(scene: Scene) -> None:
    """Makes the disk full until a save has failed, and then gives the disk room again."""
    events = events_of(scene)
    scene.wait_progress(EARLY)
    if not scene.is_ours:
        _fill_in_a_save(scene, events)
        return
    attempt, folder = scene.newest(), os.path.realpath(scene.run.checkpoints)
    before = _failed_saves(scene)
    with events.disk_full(lambda file: os.readlink(file).startswith(f"{folder}/")):
        scene.wait(
            "a save to fail",
            lambda: _failed_saves(scene) > before or scene.newest().name != attempt.name,
            60 + 2 * scene.facts.took_s,
            0.1,
        )
    causes = () if _failed_saves(scene) > before and scene.newest().name == attempt.name else ("disk", *CRASHES)
    scene.hit("the disk of the checkpoints was full until a save had failed", *causes, attempt=attempt)


def _fill_in_a_save(scene: Scene, events: FileEvents) -> None:
    """Makes the disk full from the first byte of a file until the rank is done with that file.

    A write must fail while the disk is full, because a program without our loop does not report failed saves.
    """
    shape = scene.facts.saves

    def is_saved(event: FileEvent) -> bool:
        return event.kind == WRITE and shape.is_state(own_name(scene.run, event.path))

    for _ in range(SAVES):
        caught = caught_at(scene, events, is_saved)
        try:
            if is_last_save(scene):  # without its last save, the end state of every program differs
                raise Missed("the last save was reached before the disk was full in one")
            pids = scene.live.pids()
            _write_on_full_disk(scene, events, caught.event, pids)
        finally:
            events.release()
        if events.unwritten:
            _kill_after(scene, caught, pids)
            return
    raise Missed(f"in {counted(SAVES, 'save')} no write failed, though the disk was full")


def _kill_after(scene: Scene, caught: Caught, pids: list[int]) -> None:
    """Kills the ranks at their next step, so that the job must come back from what a failed save has left on the disk:
    a program that goes on may have deleted an older checkpoint all the same."""
    step, over = scene.live.step(), time.monotonic() + AFTER_S
    with suppress(Missed):
        scene.wait(
            "the step after this save",
            lambda: processes.are_dead(pids) or scene.live.step() != step or (not step and time.monotonic() > over),
            60,
        )
    ended = processes.are_dead(pids)
    scene.kill(pids)
    words = f"the disk was full when {caught.name} was written{'' if ended else ', and later all ranks got SIGKILL'}"
    causes = () if ended else ("disk", *CRASHES)
    scene.hit(words, *causes, attempt=caught.attempt, file=caught.name, since=caught.event.at)


def _write_on_full_disk(scene: Scene, events: FileEvents, event: FileEvent, pids: list[int]) -> None:
    """Keeps the disk full until the rank changes another file, renames this file, or has closed it."""
    with events.disk_full(lambda file: os.path.samefile(file, event.here)):
        events.go_on_to(lambda after: after.rank == event.rank)
        over = time.monotonic() + OPEN_S
        scene.wait(
            "the end of this save",
            lambda: events.held is not None or (time.monotonic() > over and is_closed(event.path, pids)),
            60,
            GLANCE_S,
        )


def is_last_save(scene: Scene) -> bool:
    """Whether only the run's last save is left, by the steps at which the undisturbed run saved."""
    saved = sorted(scene.facts.saved_at)
    return len(saved) > 1 and (scene.live.step() or 0) > saved[-2]


def _failed_saves(scene: Scene) -> int:
    return sum(event.get("event") == "save-failed" for event in read_events(scene.run))


def by_save(paths: Iterable[Path], apart_s: float) -> list[list[Path]]:
    """Returns the saves, oldest first, each with its files, oldest first.

    `apart_s`: the least time between two saves. Shards of several ranks have different names, like different saves, but
    belong to one save.
    """
    saves: list[list[Path]] = []
    last = 0.0
    for path in sorted(paths, key=_written_at):
        at = _written_at(path)
        if not saves or at - last > apart_s:
            saves.append([])
        saves[-1].append(path)
        last = at
    return saves


def size_of(path: Path) -> int:
    """Returns the size of a file in bytes, or 0 if the file is gone."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _written_at(path: Path) -> float:
    with suppress(FileNotFoundError):  # a temporary file is gone if it was just renamed
        return path.stat().st_mtime
    return 0.0
