"""`clusterdp plot`: curves in the terminal and as a picture."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp import cli
from tests.operate.builder import RunBuilder


@pytest.fixture
def run(builder: RunBuilder) -> str:
    builder.submitted().attempt("7.0").trained(1, 40, lr=0.5).saved(20).requeued("crash")
    builder.attempt("7.1").restored(20).trained(21, 60, lr=0.25).measured(accuracy=0.9).finished(60)
    return "runs/digits"


def test_plot_draws_a_curve_with_last_value_and_resume_marks(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", run, "lr"]) == 0
    out = capsys.readouterr().out
    title, *lines, dots, resumed = out.splitlines()
    assert title.strip() == "lr  0.25 at step 60"
    assert (dots, resumed) == ("dots: trained again", "resumed at step 20")
    top, bottom = (next(i for i, line in enumerate(lines) if line.startswith(value)) for value in ("0.50", "0.25"))
    assert "⠉" in lines[top] and top < bottom  # the first attempt's 0.5 lies above the second's 0.25
    assert "." in lines[top].partition("┤")[2]
    assert "\x1b" not in out


def test_plot_without_a_metric_name_draws_loss_first_and_lists_undrawn_metrics(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", run]) == 0
    out = capsys.readouterr().out
    assert out.index("loss  0.01667 at step 60") < out.index("lr  0.25 at step 60")
    assert out.splitlines()[-1] == "also measured: accuracy"


def test_plot_lines_fit_a_terminal_of_40_columns(run: str) -> None:

    leader, follower = pty.openpty()
    environ = os.environ | {"COLUMNS": "40", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    subprocess.run([sys.executable, "-m", "clusterdp", "plot", run, "loss"], stdout=follower, env=environ, check=True)
    os.close(follower)
    lines = os.read(leader, 1 << 16).decode().splitlines()
    os.close(leader)
    assert max(map(len, lines)) == 40


def test_plot_of_an_unknown_metric_lists_the_existing_metrics(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", run, "los"]) == 2
    said = "clusterdp: los: the run has no such metric. Did you mean loss? There are: loss, accuracy, lr.\n"
    assert capsys.readouterr().err == said


def test_plot_of_a_run_without_metrics_is_an_error(builder: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    builder.submitted()
    assert cli.main(["plot", "runs/digits"]) == 4
    assert "runs/digits: no metrics are on record." in capsys.readouterr().err


def test_plot_writes_an_svg_and_refuses_an_unknown_suffix_or_missing_folder(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", run, "-o", "curves.svg", "loss", "lr"]) == 0
    assert capsys.readouterr().out == "curves.svg: loss, lr\n"
    drawn = Path("curves.svg").read_text()
    assert drawn.count('id="axes_') == 2
    assert cli.main(["plot", run, "-o", "curves.doc"]) == 2
    assert cli.main(["plot", run, "-o", "nowhere/curves.png"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "-o curves.doc: Format 'doc' is not supported" in first
    assert second.startswith("clusterdp: nowhere/curves.png: cannot be written: No such file or directory.")
