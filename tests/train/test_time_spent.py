from __future__ import annotations

import pytest

from clusterdp.train.output import attempt_record
from clusterdp.train.output.attempt_record import TimeSpent


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch):
        self.now = 1000.0
        patch.setattr(attempt_record, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_time_spent_by_kind_adds_up_to_the_elapsed_time(clock: Clock) -> None:
    told: list[dict[str, float]] = []
    spent = TimeSpent(lambda **seconds: told.append(seconds))
    clock.now += 5  # imports
    spent.turn("restore")
    clock.now += 2
    spent.turn("steps")
    clock.now += 3  # the first step compiles
    spent.step()
    clock.now += 10
    spent.took("saves", 1)
    spent.step()
    clock.now += 4
    with spent.during("evaluation"):
        clock.now += 6
    clock.now += 1
    spent.turn("evaluation")
    clock.now += 7
    spent.tell()
    assert told[-1] == {"startup_s": 8, "restore_s": 2, "steps_s": 14, "saves_s": 1, "evaluation_s": 13}
    assert sum(told[-1].values()) == clock.now - 1000


def test_time_spent_is_recorded_from_the_first_step_at_growing_intervals(clock: Clock) -> None:
    told: list[float] = []
    spent = TimeSpent(lambda **seconds: told.append(clock.now - 1000))
    spent.tell()
    assert told == []  # no step yet: a program without a loop has nothing to tell
    for _ in range(36000):
        clock.now += 0.1
        spent.step()
    assert told[0] == pytest.approx(0.1)
    assert told[1] - told[0] == pytest.approx(2, abs=0.11)
    assert told[-1] - told[-2] == pytest.approx(3600 / 20, rel=0.1)
    assert len(told) < 130
