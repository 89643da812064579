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


def test_lost_log_lines_are_counted_in_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_log_messages_go_to_stdout_and_errors_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("out")
    say("err", error=True)
    assert capsys.readouterr() == ("out\n", "err\n")
