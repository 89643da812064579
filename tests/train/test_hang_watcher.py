"""What a watcher takes for silence, told by a clock and a page that the tests turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, read_events
from clusterdp.train.hang import page as phases
from clusterdp.train.hang.note import Note
from clusterdp.train.hang.page import BACKWARD, DATA, EVALUATION, FIRST, PHASE, SAVE, SIGNS, STEP, STEP_BODY
from clusterdp.train.hang.silence import Silence
from clusterdp.train.hang.watched_rank import WatchOrder
from clusterdp.train.hang.watcher import Watcher

TASK = WatchOrder(
    run_dir="",
    attempt="7.0",
    rank=0,
    world_size=1,
    local_world_size=1,
    node="n1",
    pid=0,
    thread=0,
    page_fd=0,
    stacks_fd=0,
    stacks_signal=0,
    hang_after_s=None,
    on_hang=None,
    timeout_s=1800.0,
    dump="",
    dump_pipe="",
    dump_folder="",
)


class FakeRank:
    def __init__(self) -> None:
        self.page = [0, phases.START, 0, -1]
        self.stopped = False
        self.killed = False

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

    def keep_dump(self, copy: Path) -> None: ...

    def forget_dump(self) -> None: ...

    def kill(self) -> None:
        self.killed = True


class Scene:
    """A rank that trains in steps of `step_s`, and its watcher, which looks once a second."""

    def __init__(self, folder: Path, **task: Any):
        self.now = 0.0
        self.rank: Any = FakeRank()
        self.run = RunDir(folder)
        self.watcher = Watcher(TASK._replace(run_dir=str(folder), **task), self.rank, lambda: self.now)
        self.attempt = self.run.attempt("7.0")

    def at(self, phase: int) -> Scene:
        self.rank.page[PHASE] = phase
        return self

    def passes(self, seconds: float) -> Scene:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.watcher.look()
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
    assert not list(scene.attempt.hang_notes.glob("*"))


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
    assert scene.rank.killed


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
    assert not scene.rank.killed
    scene.passes(12)
    assert scene.reported
    assert scene.rank.killed == scene.attempt.hung.exists() == (ends_at is not None)


def test_hang_report_is_written_within_110_percent_of_hang_after_s(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0).steps(2, 1.0).at(BACKWARD)
    while not scene.reported:
        scene.passes(1)
    assert scene.now - 2 <= 110


def test_progress_removes_the_hang_note(tmp_path: Path) -> None:
    scene = begun(tmp_path, hang_after_s=100.0).steps(2, 1.0).at(BACKWARD).passes(103)
    assert list(scene.attempt.hang_notes.glob("rank-*"))
    scene.steps(1, 1.0)
    assert not list(scene.attempt.hang_notes.glob("rank-*"))


def test_hang_report_names_ranks_without_answer_and_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
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
    waits = Note(1, "n1", 1, step=3, phase="step", order=STEP_BODY, silent_s=9999.0, limit_s=100.0, round=99)
    waits.write(scene.attempt.hang_note(1))
    scene.at(phase).passes(1500)
    assert (scene.reported, scene.rank.killed) == (ends, ends)
    scene.passes(400)
    assert (scene.reported, scene.rank.killed) == (True, ends)


def test_watcher_reads_one_note_if_a_rank_before_it_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = begun(tmp_path, hang_after_s=100.0, world_size=64, rank=63).steps(2, 1.0)
    for rank in range(63):
        note = Note(rank, "n1", 1, step=3, phase="step", order=STEP_BODY, silent_s=9999.0, limit_s=100.0, round=99)
        note.write(scene.attempt.hang_note(rank))
    read: list[Path] = []
    monkeypatch.setattr("clusterdp.train.hang.note.read_plain", lambda path: [read.append(path), read_plain(path)][1])
    scene.at(STEP_BODY).passes(190)
    assert read == [scene.attempt.hang_note(0)]
    assert not scene.reported


@pytest.mark.parametrize("reported", [False, True])
def test_message_of_an_ended_hung_rank_names_the_report_only_if_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reported: bool
) -> None:
    """Before the loop a rank may have left no note, and then nobody writes the report."""
    rank = FakeRank()
    silence = Silence(Watcher(TASK._replace(run_dir=str(tmp_path)), rank))  # type: ignore[arg-type]
    hang = RunDir(tmp_path).attempt("7.0").hang
    if reported:
        hang.parent.mkdir(parents=True)
        hang.write_text("...")
    silence._end("the attempt has hung")
    said = "".join(capsys.readouterr())
    assert rank.killed
    assert "clusterdp: ending rank 0: the attempt has hung" in said
    assert (f"see {hang}" in said) is reported
