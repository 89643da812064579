from __future__ import annotations

import io

import pytest

from clusterdp.train.output.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(step: int, second: float) -> dict[str, object]:
    return {"time": 1e9 + second, "step": step, "total": 400, "epoch": 0, "loss": 0.25}


def test_a_terminal_has_one_line_that_changes() -> None:
    out = Terminal()
    progress = Progress(8, samples=64, out=out)
    progress(record(10, 0))
    progress(record(30, 10))
    progress.close()
    assert out.getvalue().split("\r")[1:3] == [
        "epoch 1/8  step 10/400  loss 0.25",
        "epoch 1/8  step 30/400  2 steps/s  128 samples/s  10 s, 3 min 5 s to go  loss 0.25",
    ]


def test_a_log_has_the_same_in_lines_that_come_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(8, out=io.StringIO())
    for second in range(400):
        progress(record(second, second))
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "clusterdp: epoch 1/8  step 10/400  1 steps/s  10 s, 6 min 30 s to go  loss 0.25"
    seconds = [int(line.split("step ")[1].split("/")[0]) for line in lines]
    assert seconds[:4] == [10, 20, 30, 40] and seconds[-1] - seconds[-2] > 15
