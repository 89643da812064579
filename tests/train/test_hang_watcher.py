"""What a watcher takes for silence, told by a clock and a page that the tests turn."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.rundir import Attempt, RunDir, read_events
from clusterdp.train.hang import page as phases
from clusterdp.train.hang.decision import Decision
from clusterdp.train.hang.node_watch import NodeWatch
from clusterdp.train.hang.note import Note
from clusterdp.train.hang.page import BACKWARD, DATA, EVALUATION, FIRST, PHASE, SAVE, SIGNS, STEP, STEP_BODY
from clusterdp.train.hang.watched_rank import WatchOrder
from clusterdp.train.hang.watcher import Watcher

TASK = WatchOrder(
    run_dir="",
    attempt="7.0",
    rank=0,
    world_size=1,
    local_world_size=1,
    node="n1",
    nodelist="n[1-2]",
    pid=0,
    thread=0,
    hang_after_s=None,
    on_hang=None,
    timeout_s=1800.0,
    dump="",
    dump_pipe="",
    dump_folder="",
)


class FakeRank:
    def __init__(self, order: WatchOrder) -> None:
        self.order = order
        self.page = [0, phases.START, 0, -1]
        self.stopped = False
        self.noted = False

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.page)

    def state(self) -> str:
        return "T" if self.stopped else "S"

    def is_stopped(self) -> bool:
        return self.stopped

    def wchan(self) -> str:
        return ""

    def cpu_s(self) -> float | None:
        return 1.0

    def stacks(self) -> tuple[str, str]:
        return "", ""

    def request_dump(self) -> float | None:
        return None

    def keep_dump(self) -> None: ...

    @property
    def attempt(self) -> Attempt:
        return RunDir(Path(self.order.run_dir)).attempt(self.order.attempt)

    def forget_dump(self) -> None: ...


class Scene:
    """A rank that trains in steps, its watcher, which looks once a second, and the decision at the root."""

    def __init__(self, folder: Path, **order: Any):
        self.now = 0.0
        self.rank: Any = FakeRank(TASK._replace(run_dir=str(folder), **order))
        self.run = RunDir(folder)
        self.said: list[str] = []
        self.ended: list[str] = []
        self.notes: dict[int, Note] = {}
        self.decision = Decision(self.rank.order, self.said.append, self.ended.append, lambda: self.now)
        self.watcher = Watcher(self.rank, self.send, lambda: self.now)
        self.attempt = self.run.attempt("7.0")

    def send(self, rank: int, note: Note | None) -> None:
        self.notes = {**self.notes, rank: note} if note else {}
        self.decision.take(rank, note)

    def at(self, phase: int) -> Scene:
        self.rank.page[PHASE] = phase
        return self

    def passes(self, seconds: float) -> Scene:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.watcher.look()
            self.decision.look()
        return self

    def steps(self, count: int, seconds: float) -> Scene:
        for _ in range(count):
            self.at(STEP_BODY).passes(seconds)
            self.rank.page[STEP] += 1
            self.at(DATA).passes(0.0)
            self.watcher.look()
        return self

    @property
    def reported(self) -> bool:
        return self.attempt.hang.exists()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return begun(tmp_path)


def begun(folder: Path, **task: Any) -> Scene:
    scene = Scene(folder, **task)
    scene.rank.page[FIRST] = 0
    return scene


@pytest.mark.parametrize(("rank", "slept_s", "noted"), [(0, 60.0, [60.0]), (0, 4.0, []), (1, 60.0, [])])
def test_long_suspension_is_recorded_only_by_the_watcher_of_rank_0(
    tmp_path: Path, rank: int, slept_s: float, noted: list[float]
) -> None:
    scene = begun(tmp_path, rank=rank).steps(2, 1.0)
    scene.now += slept_s  # nobody looks
    scene.watcher.look()
    scene.steps(1, 1.0)
    assert [event["seconds"] for event in read_events(scene.run) if event["event"] == "suspended"] == noted


def test_hang_limit_is_5_times_the_longest_step_with_minimum_300_s(scene: Scene) -> None:
    scene.steps(5, 1.0).at(BACKWARD).passes(299)
    assert not scene.reported
    scene.passes(3)
    assert scene.reported
    again = begun(scene.run.path / "again").steps(5, 100.0).at(BACKWARD)
    assert not again.passes(499).reported
    assert again.passes(3).reported


def test_first_step_evaluation_and_save_do_not_raise_the_hang_limit(scene: Scene) -> None:
    scene.steps(1, 1000.0).steps(3, 1.0)
    scene.at(EVALUATION).passes(1000).at(SAVE).passes(1000).steps(1, 1.0)
    assert scene.watcher.longest < 5
    assert not scene.reported


@pytest.mark.parametrize("phase", [SAVE, EVALUATION])
def test_save_evaluation_or_first_step_of_a_single_rank_is_never_hung(tmp_path: Path, phase: int) -> None:
    scene = begun(tmp_path, hang_after_s=10.0)
    assert not scene.steps(5, 1.0).at(phase).passes(5000).reported
    assert not begun(tmp_path / "first", hang_after_s=10.0).at(BACKWARD).passes(5000).reported


def test_evaluated_items_count_as_progress(scene: Scene) -> None:
    scene.steps(2, 1.0).at(EVALUATION)
    for _ in range(5):
        scene.passes(200)
        scene.rank.page[SIGNS] += 1
        scene.watcher.look()
    assert not scene.notes


def test_time_without_watcher_polls_does_not_count_as_silence(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0).steps(2, 1.0).at(BACKWARD).passes(90)
    scene.now += 3600
    scene.watcher.look()
    assert not scene.passes(90).reported
    assert scene.passes(15).reported


def test_pauses_of_a_busy_watcher_leave_the_silence_before_them(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=5.0, on_hang="restart").steps(2, 1.0).at(BACKWARD)
    for _ in range(3):  # seconds 2, 4 and 6 of silence; each pause is shorter than a suspension
        scene.passes(2.0)
        scene.now += 4.0
        scene.watcher.look()
    assert scene.reported
    assert scene.ended


def test_time_of_a_stopped_single_rank_does_not_count_as_silence(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0).steps(2, 1.0).at(BACKWARD).passes(90)
    scene.rank.stopped = True
    scene.passes(500)
    scene.rank.stopped = False
    assert not scene.passes(90).reported
    assert scene.passes(15).reported


@pytest.mark.parametrize(("on_hang", "ends_at"), [(None, 200), ("restart", 100), ("report", None)])
def test_config_key_on_hang_sets_if_and_when_a_hung_attempt_ends(
    tmp_path: Path, on_hang: str | None, ends_at: int | None
) -> None:
    scene = begun(tmp_path, hang_after_s=100.0, on_hang=on_hang).steps(2, 1.0).at(BACKWARD).passes((ends_at or 900) - 5)
    assert not scene.ended
    scene.passes(12)
    assert scene.reported
    assert bool(scene.ended) == scene.attempt.hung.exists() == (ends_at is not None)


def test_hang_report_is_written_within_110_percent_of_hang_after_s(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0).steps(2, 1.0).at(BACKWARD)
    while not scene.reported:
        scene.passes(1)
    assert scene.now - 2 <= 110


def test_progress_removes_the_hang_note(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0).steps(2, 1.0).at(BACKWARD).passes(103)
    assert scene.notes
    scene.steps(1, 1.0)
    assert not scene.notes
    scene.decision.take(0, None)  # a note that was never sent


def test_hang_report_names_ranks_without_answer_and_their_nodes(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0, world_size=4, local_world_size=2).steps(2, 1.0).at(BACKWARD)
    scene.passes(103)
    assert not scene.reported  # the notes of the others may be on their way
    scene.passes(5)
    assert "ranks 1, 2, 3 on n1, n2: no answer (it has ended, or its node is cut off)" in scene.attempt.hang.read_text()


def test_silent_rank_dying_at_the_collective_timeout_is_recorded_as_hung(tmp_path: Path) -> None:
    scene = begun(tmp_path, on_hang="report").steps(2, 1.0).at(BACKWARD).passes(400)
    scene.watcher.rank_has_died()
    assert not scene.attempt.hung.exists()
    scene.passes(1400)
    scene.watcher.rank_has_died()
    assert scene.attempt.hung.exists()


@pytest.mark.parametrize(("phase", "ends"), [(SAVE, False), (BACKWARD, True)])
def test_awaited_rank_is_ended_in_backward_but_only_reported_in_save(tmp_path: Path, phase: int, ends: bool) -> None:
    scene = begun(tmp_path, hang_after_s=100.0, world_size=2).steps(2, 1.0)
    scene.at(phase).passes(102)
    scene.decision.take(1, waiting_at(1, rounds=99))
    scene.passes(1400)
    assert (scene.reported, bool(scene.ended)) == (ends, ends)
    scene.passes(400)
    assert (scene.reported, bool(scene.ended)) == (True, ends)


def waiting_at(rank: int, rounds: int = 1) -> Note:
    about: dict[str, Any] = {"step": 3, "phase": "step", "order": STEP_BODY, "round": rounds}
    return Note(rank, "n1", 1, silent_s=9999.0, limit_s=100.0, hang_after_s=100.0, **about)


def test_first_silent_rank_decides_when_notes_are_complete(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0, world_size=64, rank=63).steps(2, 1.0)
    scene.at(STEP_BODY).passes(103)
    for rank in reversed(range(1, 63)):
        scene.decision.take(rank, waiting_at(rank))
        assert not scene.passes(0.01).reported
    scene.decision.take(0, waiting_at(0))
    assert scene.passes(0.01).reported
    assert len(list(scene.attempt.hang_folder.iterdir())) == 1  # no note is a file


@pytest.mark.parametrize("reported", [False, True])
def test_message_of_an_ended_hung_rank_names_the_report_only_if_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    scene = begun(tmp_path, hang_after_s=100.0, on_hang="restart").steps(2, 1.0).at(BACKWARD)
    if not reported:
        monkeypatch.setattr("clusterdp.train.hang.decision.write_durably", fails)
    scene.passes(103)
    (said,) = scene.ended
    assert said == "the attempt has hung" + (f"; see {scene.attempt.hang}" if reported else "")


def test_hung_rank_is_killed_after_its_dump_is_kept() -> None:
    """Slurm ends the step, and the agent with it, as soon as its ranks have ended."""
    watch, done = NodeWatch(), list[str]()
    rank: Any = SimpleNamespace(
        **{name: lambda *_, name=name: done.append(name) for name in ("say", "keep_dump", "kill")}
    )
    watcher: Any = SimpleNamespace(rank=rank)
    watch._watchers[0] = watcher
    watch._kill("the attempt has hung")
    for line in (watch.line, watch._line):
        line.close()
    assert done == ["say", "keep_dump", "kill"]
