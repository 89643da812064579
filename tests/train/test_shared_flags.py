"""Shared flags: ranks that stop at different steps hang in each other's all-reduce, or save a mixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterdp.train import SharedFlags, StopSignal
from tests.train import programs
from tests.train.ranks import running


def assert_all_stop_together(tmp_path: Path, size: int, trials: int, folder: str = "") -> None:
    with running(tmp_path, programs.signals_at_random, trials, size, folder, size=size) as ranks:
        answers = ranks.answers
    stops = [stops for stops, _ in answers]
    assert len(stops[0]) == trials
    assert stops[1:] == stops[:1] * (size - 1)
    assert {why for _, why, _, _ in stops[0]} == {"term", "time"}
    assert all(step == committed for step, _, _, committed in stops[0])
    assert 0 < max(exchanges for _, exchanges in answers) <= 2


def test_signal_on_one_rank_stops_every_rank_at_the_same_step(tmp_path: Path) -> None:
    assert_all_stop_together(tmp_path, 4, 20)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_signal_on_one_rank_makes_every_rank_commit_the_same_step(tmp_path: Path, size: int) -> None:
    assert_all_stop_together(tmp_path, size, 200, str(tmp_path / "checkpoints"))


@pytest.mark.parametrize("counts", [[3, 40, 0, 17], [5, 5, 5, 5]])
def test_ranks_with_uneven_items_exchange_flags_equally_often(tmp_path: Path, counts: list[int]) -> None:
    with running(tmp_path, programs.uneven_items, counts) as ranks:
        answers = ranks.answers
    assert [answer["seen"] for answer in answers] == counts
    assert len({answer["sent"] for answer in answers}) == 1


def test_stop_reaches_ranks_already_finished_with_their_items(tmp_path: Path) -> None:
    with running(tmp_path, programs.uneven_items, [2, 0, 9000], 50, size=3) as ranks:
        answers = ranks.answers
    assert [answer["stop"] for answer in answers] == ["term"] * 3
    assert [answer["seen"] for answer in answers][:2] == [2, 0]
    assert 50 <= answers[2]["seen"] < 9000
    assert len({answer["sent"] for answer in answers}) == 1


def test_flag_exchange_combines_set_flags_and_takes_the_lowest_save_progress(tmp_path: Path) -> None:
    with running(tmp_path, programs.flags_and_numbers) as ranks:
        answers = ranks.answers
    flags = {
        "user": False,
        "term": False,
        "time": False,
        "save": True,
        "copy": False,
        "metrics": False,
        "enough": False,
        "busy": True,
    }
    assert answers == [[None, flags, 10, False]] * 4


def test_shared_flags_of_a_single_process_report_an_expired_time_limit() -> None:
    stop = StopSignal()
    flags = SharedFlags(None, stop)
    assert flags.tick() is None
    agreed = flags.tick()
    assert agreed is not None
    assert agreed.stop is None
    stop.end_time = 0.0  # long past
    heard = [agreed.stop for agreed in (flags.tick() for _ in range(200)) if agreed]
    assert "time" in heard[:2]


def test_shared_flags_report_a_rank_busy_again_after_its_evaluation() -> None:
    """Else the next evaluation would end, on all ranks, with the first that is through."""
    flags = SharedFlags(None)
    assert [item for item, agreed in flags.iterate(range(3)) if agreed is None] == [0, 1, 2]
    heard = [agreed["busy"] for agreed in (flags.tick() for _ in range(200)) if agreed]
    assert heard
    assert all(heard)


def test_flags_are_exchanged_every_100_ms_and_at_least_every_32_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.time", SimpleNamespace(monotonic=lambda: now))

    def settled(step_s: float) -> int:
        nonlocal now
        flags = SharedFlags(None)
        for _ in range(200):
            now += step_s
            flags.tick()
        return flags.every

    assert [settled(step_s) for step_s in (1e-7, 0.01, 0.05, 0.3)] == [32, 10, 2, 1]


class Ring:
    """Ranks of which each exchange takes `way_s`; `others` is what the other ranks measure."""

    def __init__(self, way_s: float, others: Callable[[int], int] = lambda mine: mine):
        self.now = 0.0
        self.waited_s = 0.0
        self.way_s, self.others = way_s, others

    def monotonic(self) -> float:
        return self.now

    def begin(self, values: list[int]) -> int:
        self.there_at = self.now + self.way_s
        self.values = [*values[:-1], max(values[-1], self.others(values[-1]))]
        return 1

    def is_done(self, number: int) -> bool:
        return self.now >= self.there_at

    def result(self, number: int) -> list[int]:
        self.waited_s += max(0.0, self.there_at - self.now)
        self.now = max(self.now, self.there_at)
        return self.values


def train(ring: Ring, steps: int, monkeypatch: pytest.MonkeyPatch, *, step_s: float = 0.05) -> SharedFlags:
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.time", ring)
    flags = SharedFlags(ring)  # type: ignore[arg-type]
    go_on(ring, flags, steps, step_s=step_s)
    return flags


def go_on(ring: Ring, flags: SharedFlags, steps: int, *, step_s: float = 0.05) -> None:
    for _ in range(steps):
        ring.now += step_s
        flags.tick()


def test_slow_flag_exchanges_are_made_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = Ring(way_s=0.5)
    flags = train(ring, 2000, monkeypatch)
    assert 10 <= flags.every <= 20  # half a second and a whole one
    assert ring.waited_s < 0.05 * ring.now  # at four steps to an exchange, it waited for 3/5 of the time


def test_single_network_pause_does_not_lengthen_the_exchange_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(Ring(way_s=30.0), 20, monkeypatch, step_s=0.5).every == 4


def test_exchange_interval_shrinks_after_the_network_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a network that was slow for a moment would make every later stop come late."""
    ring = Ring(way_s=0.5)
    flags = train(ring, 200, monkeypatch)
    assert flags.every >= 10
    ring.way_s = 0.001
    go_on(ring, flags, 500)
    assert flags.every == 2


def test_late_rank_does_not_lengthen_the_exchange_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Ring(way_s=0.5, others=lambda mine: 0)  # who came last did not wait
    assert train(late, 200, monkeypatch).every == 2


def test_time_reserved_for_a_stop_covers_two_exchanges_and_a_typical_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = Ring(way_s=0.0)
    flags = train(ring, 20, monkeypatch)
    flags.saves.extend([3.0] * 19 + [60.0])  # one of them was an outlier
    go_on(ring, flags, 20)
    assert flags.stop.needed_s == pytest.approx(1.25 * (2 * (2 + 1) * 0.05 + 3.0) + 5.0)


def test_measured_step_time_excludes_initial_data_loading_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.time", SimpleNamespace(monotonic=lambda: now))
    flags = SharedFlags(None)
    now += 100.0  # loading data
    flags.tick()
    now += 5.01
    flags.discount(5.0)  # of which a save took 5
    flags.tick()
    assert flags.stop.needed_s == 0.0  # not 400 s, by which the run would end before its time
    now += 0.01
    agreed = flags.tick()
    assert agreed is not None
    assert agreed.step_s == pytest.approx(0.01)
