from __future__ import annotations

import io

import pytest

from clusterdp.train.output.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(step: int, second: float, **values: object) -> dict[str, object]:
    return {"time": 1e9 + second, "step": step, "total": 400, "epoch": 0, **(values or {"loss": 0.25})}


def test_progress_on_a_terminal_rewrites_one_line() -> None:
    out = Terminal()
    progress = Progress(8, samples=64, out=out)
    progress(record(10, 0))
    progress(record(30, 10))
    progress.close()
    assert out.getvalue().split("\r")[1:3] == [
        "epoch 1/8  step 10/400  loss 0.25",
        "epoch 1/8  step 30/400  2 steps/s  128 samples/s  10 s, 3 min 5 s to go  loss 0.25",
    ]


def test_progress_in_a_log_prints_lines_at_growing_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(8, out=io.StringIO())
    for second in range(400):
        progress(record(second, second))
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "clusterdp: epoch 1/8  step 10/400  1 steps/s  10 s, 6 min 30 s to go  loss 0.25"
    seconds = [int(line.split("step ")[1].split("/")[0]) for line in lines]
    assert seconds[:4] == [10, 20, 30, 40] and seconds[-1] - seconds[-2] > 15


def lines(*records: dict[str, object], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a log says of their values."""
    progress = Progress(8, out=io.StringIO())
    for each in records:
        progress(each)
    said = capsys.readouterr().out.splitlines()
    return [line.partition(" to go  ")[2] for line in said]


def test_progress_line_in_a_log_shows_means_since_the_previous_line(capsys: pytest.CaptureFixture[str]) -> None:
    values = [(0, 9.0), (5, 1.0), (10, 2.0), (15, 3.0), (20, 7.0)]
    said = lines(*(record(second, second, loss=loss) for second, loss in values), capsys=capsys)
    assert said == ["loss 4", "loss 5"]


def test_progress_shows_the_latest_learning_rates_and_a_nan_loss(capsys: pytest.CaptureFixture[str]) -> None:
    first = record(0, 0, **{"lr": 0.1, "head/lr0": 0.5, "clr": 1.0, "loss": 1.0, "name": "x", "ok": True})
    last = record(10, 10, **{"lr": 0.3, "head/lr0": 0.7, "clr": 2.0, "loss": "nan", "rare": 5.0})
    assert lines(first, last, capsys=capsys) == ["lr 0.3  head/lr0 0.7  clr 1.5  loss nan  rare 5"]


def test_progress_means_restart_in_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(0, 0, phase="warm", loss=100.0), record(10, 10, phase="main", loss=1.0)]
    assert lines(*records, capsys=capsys) == ["loss 1"]


def test_progress_on_a_terminal_shows_means_of_the_last_ten_seconds() -> None:
    out = Terminal()
    progress = Progress(8, out=out)
    for second, loss in ((0, 50.0), (4, 6.0), (11, 2.0)):
        progress(record(second, second, loss=loss))
    assert [line.rpartition("loss ")[2].strip() for line in out.getvalue().split("\r")[1:]] == ["50", "28", "4"]
