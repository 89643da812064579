"""A line that no log can take must not end a training."""

from __future__ import annotations

import io
import sys

import pytest

from clusterdp.train.output.say import say


class Log(io.StringIO):
    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_that_find_no_room_are_lost_and_counted_where_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(sys, "stdout", log)
    say("one")
    log.full = True
    say("two")
    say("three")
    log.full = False
    say("four")
    say("five")
    lost = "clusterdp: 2 lines were lost here because this log could not be written.\n"
    assert log.getvalue() == f"one\n{lost}four\nfive\n"


def test_it_goes_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    say("out")
    say("err", error=True)
    assert capsys.readouterr() == ("out\n", "err\n")
