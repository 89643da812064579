"""Strikes: kills of all ranks at moments of a save.

The kernel holds the rank's system call until all ranks are dead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterdp.fakeslurm.core.file_traps import DELETE, LINK, RENAME, SYMLINK, WRITE
from clusterdp.rehearse.drills.losses import CRASHES
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.file_events import FileEvent, FileEvents
from clusterdp.rehearse.observe.save_shape import AFTER, BEFORE, FIRST_BYTES, MIDDLE, Strike, named, save_until
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import Attempt
from clusterdp.wording import counted

EARLY = 0.2  # part of the training before which no strike comes, because the program must have saved
GLANCE_S = 0.0003  # seconds between two looks at a file, because a small file is written within milliseconds
DONE = {WRITE: "opened to be written", RENAME: "renamed", LINK: "linked", SYMLINK: "linked", DELETE: "deleted"}


@dataclass(frozen=True)
class Caught:
    """A file event whose system call is held before it is done."""

    attempt: Attempt
    event: FileEvent
    name: str  # the file's


def killed_while_saving(scene: Scene) -> None:
    """Kills all ranks at a moment of a save, and the ranks of each later attempt at another moment.

    Moments that do not come before the run is over are left out.
    """
    events = events_of(scene)
    shape = scene.facts.saves
    chosen = shape.strikes if scene.thorough else shape.few()
    if not chosen:
        raise NotPossibleHere("the undisturbed run has changed no file at a save")
    left = [*chosen]
    scene.wait_progress(EARLY)
    try:
        while left:
            if scene.hits:
                scene.wait_next_attempt(scene.run.attempt(scene.hits[-1].attempt))
            left.remove(_kill_at_one(scene, events, left))
    except Missed:
        if not scene.hits:
            raise
        scene.unmade = f"{counted(len(left), 'moment')} of {len(chosen)} did not come before the run was over"
    finally:
        events.release()


def events_of(scene: Scene) -> FileEvents:
    if scene.cluster.file_events is None:
        raise NotPossibleHere(
            "this system gives no notice of what a program does to its files (Linux 5.5 or later does)"
        )
    return scene.cluster.file_events


def caught_at(scene: Scene, events: FileEvents, wanted: Callable[[FileEvent], bool]) -> Caught:
    """Waits for the first event that `wanted` accepts, and holds the event's system call."""
    events.hold(wanted)
    scene.wait("a save", lambda: events.held is not None, scene.patience_s)
    assert events.held
    event = events.held.event
    return Caught(scene.newest(), event, _shown(scene, event.path))


def _kill_at_one(scene: Scene, events: FileEvents, strikes: Sequence[Strike]) -> Strike:
    """Kills all ranks at the first of these strikes whose moment comes, and returns that strike."""

    def strikes_at(event: FileEvent) -> list[Strike]:
        own = named(scene.run, event)
        return [strike for strike in strikes if own and scene.facts.saves.is_at(strike, own)]

    caught = caught_at(scene, events, lambda event: bool(strikes_at(event)))
    strike = strikes_at(caught.event)[0]
    try:
        _kill_at(scene, events, strike, caught)
    finally:
        events.release()
    return strike


def _kill_at(scene: Scene, events: FileEvents, strike: Strike, caught: Caught) -> None:
    began = scene.hits[-1].at if scene.hits else 0.0
    events_of_attempt = [event for event in events.events if event.at > began]
    own = [event for event in (named(scene.run, each) for each in (*events_of_attempt, caught.event)) if event]
    save = save_until(own)
    done = f"{caught.name} was {DONE[strike.kind]}"
    if strike.when == BEFORE:
        words = f"before {done}"
        if len(save) > 1:
            words = f"after {_shown(scene, str(scene.run.path / save[-2].path))} was {DONE[save[-2].kind]}, {words}"
        pids = frozen(scene)
    elif strike.when == AFTER:
        events.finish()
        pids = frozen(scene)
        words = f"just after {done}"
    else:
        words = "at the first byte of" if strike.when == FIRST_BYTES else "in the middle of"
        pids = _frozen_in(scene, events, caught.event)
        words = f"{words} {caught.name}{_cut(caught.event, 0 if strike.when == FIRST_BYTES else 1 / 2)}"
    with events.refused():
        scene.kill(pids)
        scene.wait("the end of the killed ranks", lambda: processes.are_dead(pids), scene.patience_s)
    scene.hit(
        f"all ranks got SIGKILL {words}",
        *CRASHES,
        attempt=caught.attempt,
        file=caught.name if strike.when in (FIRST_BYTES, MIDDLE) else "",
        since=None if strike.when == AFTER else save[0].at,
        moment=words,
    )


def frozen(scene: Scene) -> list[int]:
    pids = scene.freeze()
    if not pids and not scene.cluster.ranks_are_here:
        raise NotPossibleHere("the ranks run on other machines, where they cannot be stopped")
    return pids


def _frozen_in(scene: Scene, events: FileEvents, event: FileEvent) -> list[int]:
    """Stops the ranks when the file has bytes, or at the next system call that may follow the last byte.

    This call is held, so that the file cannot be renamed before the ranks are killed.
    """
    events.go_on_to(lambda after: after.rank == event.rank or after.kind != WRITE)
    scene.wait("bytes of a save", lambda: events.held is not None or _size(event) > 0, scene.patience_s, GLANCE_S)
    return frozen(scene)


def _size(event: FileEvent) -> int:
    with suppress(OSError):  # the file does not exist yet
        return event.here.stat().st_size
    return 0


def _cut(event: FileEvent, part: float) -> str:
    """Cuts the file to a part of its bytes, as if the kill had come earlier, and returns words for the cut."""
    size = _size(event)
    left = int(size * part)
    if left == size:
        return ""
    os.truncate(event.here, left)
    return f": {left} of {size} bytes were left"


def _shown(scene: Scene, path: str) -> str:
    for base in (scene.run.code, scene.run.path):
        if path.startswith(f"{base}/"):
            return path.removeprefix(f"{base}/")
    return path
