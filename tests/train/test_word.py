"""The control word: ranks that stop at different steps hang in each other's all-reduce, or save a mixture."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterdp.train import ControlWord, StopSignal
from tests.train import programs
from tests.train.ranks import running


def test_a_signal_on_one_rank_stops_all_at_the_same_step_in_20_trials(tmp_path: Path) -> None:
    with running(tmp_path, programs.signals_at_random, 20, 1) as ranks:
        answers = ranks.answers
    assert len(answers[0]) == 20
    assert answers[1:] == answers[:1] * 3
    assert {why for _, why, _ in answers[0]} == {"term", "time"}


@pytest.mark.parametrize("counts", [[3, 40, 0, 17], [5, 5, 5, 5]])
def test_ranks_with_uneven_ends_send_equally_many_words_and_go_on_in_step(tmp_path: Path, counts: list[int]) -> None:
    with running(tmp_path, programs.uneven_items, counts) as ranks:
        answers = ranks.answers
    assert [answer["seen"] for answer in answers] == counts
    assert len({answer["sent"] for answer in answers}) == 1


def test_a_stop_reaches_a_rank_that_is_through_already(tmp_path: Path) -> None:
    with running(tmp_path, programs.uneven_items, [2, 0, 9000], 50, size=3) as ranks:
        answers = ranks.answers
    assert [answer["stop"] for answer in answers] == ["term"] * 3
    assert [answer["seen"] for answer in answers][:2] == [2, 0]
    assert 50 <= answers[2]["seen"] < 9000
    assert len({answer["sent"] for answer in answers}) == 1


def test_no_flag_is_lost_and_the_least_durable_save_counts(tmp_path: Path) -> None:
    with running(tmp_path, programs.flags_and_numbers) as ranks:
        answers = ranks.answers
    flags = {"term": False, "time": False, "save": True, "enough": False, "busy": True}
    assert answers == [[None, flags, 10, False]] * 4


def test_alone_a_process_agrees_with_itself() -> None:
    stop = StopSignal()
    word = ControlWord(None, stop)
    assert word.tick() is None
    agreed = word.tick()
    assert agreed is not None
    assert agreed.stop is None
    stop.stop_at = 0.0  # long past
    heard = [agreed.stop for agreed in (word.tick() for _ in range(200)) if agreed]
    assert "time" in heard[:2]


def test_a_word_goes_out_every_50_ms_of_steps_and_at_least_every_32(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("clusterdp.train.word.time", SimpleNamespace(monotonic=lambda: now))

    def settled(step_s: float) -> int:
        nonlocal now
        word = ControlWord(None)
        for _ in range(200):
            now += step_s
            word.tick()
        return word.every

    assert [settled(step_s) for step_s in (1e-7, 0.005, 0.025, 0.3)] == [32, 10, 2, 1]


def test_time_before_the_first_step_and_in_saves_is_no_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("clusterdp.train.word.time", SimpleNamespace(monotonic=lambda: now))
    word = ControlWord(None)
    now += 100.0  # loading data
    word.tick()
    now += 5.01
    word.discount(5.0)  # of which a save took 5
    word.tick()
    now += 0.01
    agreed = word.tick()
    assert agreed is not None
    assert agreed.step_s == pytest.approx(0.01)
