"""Strikes: kills of all ranks at moments of a save.

The kernel holds the rank's system call until all ranks are dead.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterdp.fakeslurm.core.file_traps import BYTES, DELETE, LINK, RENAME, SYMLINK, WRITE
from clusterdp.rehearse.drills.losses import CRASHES
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.file_events import FileEvent, FileEvents
from clusterdp.rehearse.observe.save_shape import AFTER, FIRST_BYTES, MIDDLE, Strike, named, own_name, save_until
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import Attempt
from clusterdp.wording import counted

EARLY = 0.2  # part of the training before which no strike comes, because the program must have saved
OPEN_S = 0.5  # seconds after which a released open() is surely done
GLANCE_S = 0.0003  # seconds between two looks at a file, because a small file is written within milliseconds
DONE = {WRITE: "opened to be written", RENAME: "renamed", LINK: "linked", SYMLINK: "linked", DELETE: "deleted"}


@dataclass(frozen=True)
class Caught:
    """A file event whose system call is held before it is done."""

    attempt: Attempt
    event: FileEvent
    name: str  # the file's


def killed_while_saving(scene: Scene) -> None:
    """Kills all ranks at a moment of a save, the ranks of each later attempt at another moment, and at one moment only
    the rank that saves.

    Moments that do not come before the run is over are left out.
    """
    events = events_of(scene)
    shape = scene.facts.saves
    if not shape.strikes:
        raise NotPossibleHere("the undisturbed run has written no file at a save")
    scene.wait_progress(EARLY)
    is_of_several = len(scene.live.ranks()) > 1
    every = [each for each in shape.strikes if is_of_several or each.rank is None]
    left = [each for each in every if scene.thorough or each in shape.few()]
    try:
        while left:
            if scene.hits:
                scene.wait_next_attempt(scene.run.attempt(scene.hits[-1].attempt))
            left.remove(_kill_at_one(scene, events, left))
    except Missed:
        if not scene.hits:
            raise
    finally:
        events.release()
    late = f", and {len(left)} did not come before the run was over" if left else ""
    scene.unmade = f"{len(scene.hits)} of {counted(len(every), 'moment')} of a save were tried{late}"


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
    torn = ""
    if caught.event.kind == BYTES:
        events.half(in_pages=True)
        torn = ": it stays open, and some of its bytes were new"
        words = f"in the middle of {caught.name}{torn}"
    elif strike.when in (FIRST_BYTES, MIDDLE):
        torn = _go_into(scene, events, strike, caught.event)
        inside = "at the first byte" if strike.when == FIRST_BYTES else "in the middle"
        words = f"{inside} of {caught.name}{torn}" if torn else f"just after {done}"
    elif strike.when == AFTER:
        events.finish()
        words = f"just after {done}"
    else:
        words = f"before {done}"
        if len(save) > 1:
            words = f"after {_shown(scene, str(scene.run.path / save[-2].path))} was {DONE[save[-2].kind]}, {words}"
    pids = frozen(scene)
    victims = (strike.rank is not None and scene.live.ranks().get(strike.rank)) or pids
    with events.refused(strike.rank):
        scene.kill(victims)
        scene.wait("the end of the killed ranks", lambda: processes.are_dead(victims), scene.patience_s)
    scene.thaw([pid for pid in pids if pid not in victims])
    who = "all ranks" if victims == pids else f"rank {strike.rank} alone"
    scene.hit(
        f"{who} got SIGKILL {words}",
        *CRASHES,
        attempt=caught.attempt,
        file=caught.name if torn else "",
        since=None if strike.when == AFTER else save[0].at,
        moment=words,
    )


def frozen(scene: Scene) -> list[int]:
    pids = scene.freeze()
    if not pids and not scene.cluster.ranks_are_here:
        raise NotPossibleHere("the ranks run on other machines, where they cannot be stopped")
    return pids


def _go_into(scene: Scene, events: FileEvents, strike: Strike, event: FileEvent) -> str:
    """Lets the rank open the file and write some of its bytes, and returns words for this state.

    Holds the first call that writes bytes, or for MIDDLE the call in the middle, by the number of calls in an earlier
    save, after half of the call's bytes. Each state is one that a kill leaves, because nothing comes after these bytes:
    a file that is cut later would lack bytes that other files rely on, such as a journal's. If there is no such call,
    because the program maps the file into its memory, the rank is held at its next call.
    """
    is_new = event.truncates or not os.path.lexists(event.here)
    key = scene.facts.saves.key
    calls = events.calls_for(lambda path: key(own_name(scene.run, path)) == strike.path)
    middle = calls // 2 if strike.when == MIDDLE else 0
    seen = itertools.count()

    def is_there(after: FileEvent) -> bool:
        if after.kind != BYTES:
            return after.rank == event.rank or (strike.rank is None and after.kind != WRITE)
        return _is_same(after, event) and next(seen) == middle

    pids = [pid for of_rank in scene.live.ranks().values() for pid in of_rank]
    events.go_on_to(is_there)
    over = time.monotonic() + OPEN_S

    def has_come() -> bool:
        maps = not calls and is_new and _size(event) > 0
        return events.held is not None or maps or (time.monotonic() > over and is_closed(event.path, pids))

    scene.wait("bytes of a save", has_come, scene.patience_s)
    is_inside = events.held is not None and events.held.event.kind == BYTES
    if is_inside and strike.when == MIDDLE:
        events.half(in_pages=not is_new)
    left = f"{_size(event)} bytes were left" if is_new else "some were new" if strike.when == MIDDLE else "none was new"
    return f": {left}" if is_inside else ""


def is_closed(path: str, pids: Iterable[int]) -> bool:
    return os.path.realpath(path) not in {file.path for file in processes.written_files(pids)}


def _is_same(one: FileEvent, other: FileEvent) -> bool:
    try:
        return os.path.samefile(one.here, other.here)
    except OSError:  # one of the files is gone
        return False


def _size(event: FileEvent) -> int:
    with suppress(OSError):  # the file does not exist yet
        return event.here.stat().st_size
    return 0


def _shown(scene: Scene, path: str) -> str:
    for base in (scene.run.code, scene.run.path):
        if path.startswith(f"{base}/"):
            return path.removeprefix(f"{base}/")
    return path
