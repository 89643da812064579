"""Kills at moments of a save, on a real process whose calls are held."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterdp.fakeslurm.core import file_traps
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.drills.strikes import killed_while_saving
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_events import FileEvent, FileEvents
from clusterdp.rehearse.observe.save_shape import SaveShape, Strike, learn, named, own_name, with_open_files
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import RunDir

TRAPPED = "from clusterdp.fakeslurm.core import file_traps; file_traps.install({socket!r}, 0, 'n1'); import os, time\n"
SAVE = """
for step in range(2):
    with open(f"step_{step}.tmp", "wb") as file:
        file.write(bytes(1000))
    os.replace(f"step_{step}.tmp", f"step_{step}.pt")
    with open("latest", "w") as file:
        file.write(str(step))
    if step: os.unlink("step_0.pt")
    time.sleep(0.3)
"""

needs_traps = pytest.mark.skipif(not file_traps.possible(), reason="this kernel has no file traps")


class Job:
    """A run of one process, which is started again after each kill, with an empty folder."""

    def __init__(self, run: RunDir, events: FileEvents):
        self.run, self.events = run, events
        self.program = SAVE
        self.process: subprocess.Popen[bytes] | None = None
        self.left: list[dict[str, int]] = []  # after each kill, the files with their sizes
        self.look: Callable[[], None] = lambda: None  # called after each kill

    def start(self) -> None:
        for file in self.run.code.glob("*"):
            file.unlink()
        trapped = TRAPPED.format(socket=str(self.events.socket)) + self.program
        self.process = subprocess.Popen([sys.executable, "-B", "-c", trapped], cwd=self.run.code)

    def learned(self) -> SaveShape:
        """From the events of an undisturbed run."""
        self.start()
        assert self.process and self.process.wait() == 0
        own = [event for event in (named(self.run, each) for each in self.events.events) if event]
        binary = {own_name(self.run, path): size for path, size in self.events.binary.items()}
        self.events.events.clear()
        return learn(own, binary)

    def size(self, name: str) -> int:
        return (self.run.code / name).stat().st_size if (self.run.code / name).exists() else 0

    def freeze(self) -> list[int]:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        return [self.process.pid]

    def kill(self, pids: list[int]) -> None:
        assert self.process and pids == [self.process.pid]
        self.process.kill()
        self.process.wait()
        self.left.append({file.name: file.stat().st_size for file in self.run.code.iterdir()})
        self.look()

    def wait(self, what: str, look: Callable[[], bool], timeout_s: float, every_s: float = 0.01) -> None:
        assert self.process
        while not look():
            if self.process.poll() is not None and not look():
                raise Missed(f"the run was over before {what}")
            time.sleep(every_s)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    run, events = RunDir(tmp_path / "run"), FileEvents(tmp_path / "s", sees_bytes=True)
    run.code.mkdir(parents=True)
    made = Job(run, events)
    yield made
    if made.process:
        made.process.kill()
        made.process.wait()
    events.close()


def learned() -> SaveShape:
    """From the events of SAVE."""
    saves = []
    for step in range(2):
        temporary, final = f"code/step_{step}.tmp", f"code/step_{step}.pt"
        save = [("write", temporary), ("rename", temporary, final), ("write", "code/latest")]
        save += [("delete", "code/step_0.pt")] if step else []
        saves += [FileEvent(*event, at=1.0 + step) for event in save]
    return learn(saves, {f"code/step_{step}.tmp": 1000 for step in range(2)})


def scene_of(job: Job, saves: SaveShape, thorough: bool = True) -> Any:
    def hit(evidence: str, *causes: str, attempt: Any, **more: Any) -> None:
        made.hits.append(SimpleNamespace(evidence=evidence, attempt=attempt.name, at=time.time(), **more))

    made = SimpleNamespace(
        run=job.run,
        facts=Facts(saves=saves),
        cluster=SimpleNamespace(file_events=job.events, ranks_are_here=True),
        thorough=thorough,
        patience_s=10.0,
        wait=job.wait,
        wait_progress=lambda part: job.start(),
        wait_next_attempt=lambda attempt: job.start(),
        newest=lambda: job.run.attempt("7.0"),
        freeze=job.freeze,
        thaw=lambda pids: None,
        live=SimpleNamespace(ranks=lambda: {0: [job.process.pid] if job.process else []}),
        kill=job.kill,
        hit=hit,
        hits=[],
        unmade="",
    )
    return made


@needs_traps
def test_kill_at_each_moment_of_a_save_leaves_the_expected_files(job: Job) -> None:
    scene = scene_of(job, learned())
    killed_while_saving(cast(Scene, scene))
    words = [hit.evidence.removeprefix("all ranks got SIGKILL ") for hit in scene.hits]
    moments = dict(zip(words, job.left, strict=True))
    first = {"step_0.pt": 1000, "latest": 1}
    assert moments == {
        "at the first byte of step_0.tmp: 0 bytes were left": {"step_0.tmp": 0},
        "in the middle of step_0.tmp: 500 bytes were left": {"step_0.tmp": 500},
        "after step_0.tmp was opened to be written, before step_0.tmp was renamed": {"step_0.tmp": 1000},
        "after step_0.tmp was renamed, before latest was opened to be written": {"step_0.pt": 1000},
        "at the first byte of latest: 0 bytes were left": {"step_0.pt": 1000, "latest": 0},
        "in the middle of latest: 0 bytes were left": {"step_0.pt": 1000, "latest": 0},
        "after latest was opened to be written, before step_0.pt was deleted": {**first, "step_1.pt": 1000},
        "just after step_0.pt was deleted": {"step_1.pt": 1000, "latest": 1},
    }
    assert [hit.since is None for hit in scene.hits] == [False] * 7 + [True]
    torn = ["step_0.tmp", "step_0.tmp", "", "", "latest", "latest", "", ""]
    assert [hit.file for hit in scene.hits] == torn


SQLITE = """
import sqlite3
file = sqlite3.connect("train.db")
file.execute("create table state (step integer, data blob)")
for step in range(4):
    with file:
        file.execute("delete from state")
        file.executemany("insert into state values (?, ?)", [(step, bytes([step]) * 9000)] * 9)
    time.sleep(0.3)
"""
IN_PLACE = """
open("first", "wb").write(bytes(40_000))
os.rename("first", "a.bin")
for step in range(4):
    time.sleep(0.3)
    with open("a.bin", "r+b", 0) as file:
        for part in range({parts}):
            file.write(bytes([0, step + 1]) * (20_000 // {parts}))
"""


@needs_traps
def test_kill_in_any_moment_of_a_sqlite_transaction_leaves_the_database_whole(job: Job) -> None:
    found = []

    def look() -> None:
        with sqlite3.connect(job.run.code / "train.db") as file:
            found.append(file.execute("pragma integrity_check").fetchone()[0])
            with suppress(sqlite3.OperationalError):  # the table is not there yet
                found.append(file.execute("select count(*), count(distinct step) from state").fetchone())

    job.program, job.look = SQLITE, look
    shape = job.learned()
    killed_while_saving(cast(Scene, scene_of(job, shape)))
    assert {each.when for each in shape.strikes} == {"first bytes", "middle", "before", "after"}
    assert found and {*found} <= {"ok", (9, 1), (0, 0)}


@needs_traps
@pytest.mark.parametrize("parts", [1, 4])
def test_kill_inside_a_write_in_place_leaves_new_and_old_bytes(job: Job, parts: int) -> None:
    found = []
    job.program, job.look = IN_PLACE.format(parts=parts), lambda: found.append((job.run.code / "a.bin").read_bytes())
    shape = job.learned()
    middle = tuple(each for each in shape.strikes if each.when == "middle" and each.rank is None)
    killed_while_saving(cast(Scene, scene_of(job, replace(shape, strikes=middle))))
    [content] = [each[1::2] for each in found]
    new = 2 * len(content.rstrip(content[-1:]))
    assert (len(content), new) == (20_000, 16_384 if parts == 1 else 24_096)
    assert content[0] == content[-1] + 1


STAYS_OPEN = """
file = open("state.bin", "w+b", 0)
file.write(bytes(40_000))
for step in range(8):
    time.sleep(0.2)
    file.seek(0)
    file.write(bytes([0, step + 1]) * 20_000)
"""


@needs_traps
def test_kill_inside_a_constantly_open_file_leaves_new_and_old_bytes(job: Job) -> None:
    found = []
    job.program, job.look = STAYS_OPEN, lambda: found.append((job.run.code / "state.bin").read_bytes()[1::2])
    shape = with_open_files(SaveShape(("code", "state", "bin", "/", ".")), ["code/state.bin"])
    scene = scene_of(job, shape)
    scene.wait_progress = lambda part: (job.start(), job.wait("bytes", lambda: job.size("state.bin") > 0, 10))
    killed_while_saving(cast(Scene, scene))
    [content] = found
    assert len(content) == 20_000 and content[0] == content[-1] + 1
    assert "in the middle of state.bin: it stays open" in scene.hits[0].evidence


@needs_traps
def test_kill_at_an_empty_file_waits_for_no_bytes(job: Job) -> None:
    job.program = "open('a.bin', 'wb').write(bytes(9))\nopen('DONE', 'w').close()\ntime.sleep(60)"
    scene = scene_of(job, SaveShape(("code", "DONE", "/"), (Strike("write", "code/DONE", "", "middle"),)))
    killed_while_saving(cast(Scene, scene))
    assert [hit.moment for hit in scene.hits] == ["just after DONE was opened to be written"]
    assert job.left == [{"a.bin": 9, "DONE": 0}]


@needs_traps
def test_save_moment_not_reached_before_the_run_ends_is_reported(job: Job) -> None:
    shape = learned()
    never = shape.strikes[0].__class__("link", "code/*", "", "before")
    scene = scene_of(job, SaveShape(shape.words, (shape.strikes[0], never)))
    killed_while_saving(cast(Scene, scene))
    assert len(scene.hits) == 1 and scene.unmade == (
        "1 of 2 moments of a save were tried, and 1 did not come before the run was over"
    )


@needs_traps
def test_drill_raises_missed_if_no_moment_of_a_save_is_reached(job: Job) -> None:
    shape = learned()
    never = shape.strikes[0].__class__("link", "code/*", "", "before")
    with pytest.raises(Missed):
        killed_while_saving(cast(Scene, scene_of(job, SaveShape(shape.words, (never,)))))


@pytest.mark.parametrize(
    ("file_events", "why"),
    [(None, "Linux 5.5"), (object(), "the undisturbed run has written no file at a save")],
)
def test_killed_while_saving_is_inapplicable_without_file_events_or_learned_saves(
    file_events: object, why: str
) -> None:
    cluster = SimpleNamespace(file_events=file_events)
    with pytest.raises(NotPossibleHere, match=why):
        killed_while_saving(cast(Scene, SimpleNamespace(cluster=cluster, facts=Facts(), thorough=False)))
