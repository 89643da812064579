"""History: what people look at when a training is over."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clusterdp.errors import ConfigError
from clusterdp.train import History
from clusterdp.train.loop.history import Plot, row_line

ROWS = [
    {"epoch": 1, "step": 6, "loss": 0.5, "val_loss": 0.75, "lr": 0.1},
    {"epoch": 2, "step": 12, "loss": 0.25, "val_loss": 0.5, "lr": 0.1},
    {"epoch": 3, "step": 18, "loss": 0.125, "val_loss": float("nan"), "val_f1": 0.9, "lr": 0.1},
]


def test_history_prints_as_an_aligned_table() -> None:
    assert str(History(ROWS)).splitlines() == [
        "epoch  step   loss  val_loss  val_f1",
        "    1     6    0.5      0.75       -",
        "    2    12   0.25       0.5       -",
        "    3    18  0.125       nan     0.9",
    ]


def test_learning_rate_is_a_column_of_the_table_if_it_changes() -> None:
    rows = [{"epoch": 1, "lr": 0.1}, {"epoch": 2, "lr": 0.01}]
    assert "lr" in str(History(rows))
    assert "lr" in str(History(rows[:1]))
    assert [row_line(row, before) for before, row in pairwise([{}, *rows, rows[1]])] == [
        "epoch 1  lr 0.1",
        "epoch 2  lr 0.01",
        "epoch 2",
    ]


def test_history_is_a_table_in_a_notebook() -> None:
    rows = [{"epoch": 1, "a<b": 0.5}, {"epoch": 2, "a<b": None}]
    assert repr(History(rows)) == str(History(rows))
    assert History(rows)._repr_html_() == ("<table><tr><th>epoch<th>a&lt;b<tr><td>1<td>0.5<tr><td>2<td>-</table>")


def test_history_best_ignores_nan() -> None:
    history = History(ROWS)
    assert history.best("val_loss") is ROWS[1]
    assert history.best("val_loss", "max") is ROWS[0]
    assert History().best("val_loss") is None
    with pytest.raises(ConfigError, match=r"no epoch has a 'acc'\. There are: epoch, step, loss"):
        history.best("acc")


def test_history_returns_columns_and_rows_and_restores_from_its_state() -> None:
    history = History(ROWS)
    assert history["val_f1"] == [None, None, 0.9]
    assert history[-1]["epoch"] == 3
    again = History()
    again.load_state_dict(json.loads(json.dumps(history.state_dict())))
    assert str(again) == str(history)


def test_history_plot_writes_a_png(tmp_path: Path) -> None:
    file = History(ROWS).plot(tmp_path / "history.png")
    assert isinstance(file, Path)
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The lines of each panel, and its ticks, of the figures that are saved."""
    from matplotlib.figure import Figure

    seen: list[Any] = []

    def savefig(figure: Any, file: Any, **options: Any) -> None:
        figure.canvas.draw()
        for axes in figure.axes:
            ticks = [tick for tick in axes.get_xticks() if 1 <= tick <= 3]
            seen.append([[line.get_label() for line in axes.lines], ticks])

    monkeypatch.setattr(Figure, "savefig", savefig)
    return seen


def test_history_plot_omits_constant_columns_and_has_ticks_at_epochs(panels: list[Any]) -> None:
    History(ROWS).plot("history.png")
    assert panels == [[["loss", "val_loss"], [1, 2, 3]], [["val_f1"], [1, 2, 3]]]


def test_history_plot_of_one_metric_draws_only_its_train_and_val_columns(panels: list[Any]) -> None:
    assert History(ROWS).plot("loss", "x.png") == Path("x.png")
    assert History(ROWS).plot("lr", file="lr.png") == Path("lr.png")
    assert [lines for lines, _ in panels] == [["loss", "val_loss"], ["lr"]]


def test_history_plot_of_several_runs_draws_them_together(panels: list[Any]) -> None:
    other = History([{"epoch": epoch, "loss": 0.1 / epoch} for epoch in range(1, 6)])
    History(ROWS).plot("loss", "x.png", large=other)
    assert [lines for lines, _ in panels] == [["loss", "val_loss", "loss (large)"]]


def test_history_plot_joins_values_across_epochs_without_one() -> None:
    plot = History([{"epoch": n, "loss": 1 / n, **({"val_loss": n} if n % 2 else {})} for n in range(1, 6)]).plot()
    assert isinstance(plot, Plot)
    assert [line.get_xydata().tolist() for line in plot.figure.axes[0].lines][1] == [[1, 1], [3, 3], [5, 5]]


def test_history_plot_of_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'los' is not a column\. There are: epoch, step, loss"):
        History(ROWS).plot("los")


@pytest.mark.parametrize("what", [None, "loss"])
def test_history_plot_without_a_file_is_a_picture_in_a_notebook(tmp_path: Path, what: Any) -> None:
    plot = History(ROWS).plot(what)
    assert isinstance(plot, Plot)
    assert plot._repr_png_().startswith(b"\x89PNG")
    assert plot.save(tmp_path / "x.svg").read_text().startswith("<?xml")


def test_history_plot_without_matplotlib_is_an_error_with_a_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install"):
        History(ROWS).plot("x.png")
