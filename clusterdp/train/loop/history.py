"""History: the numbers of each epoch, as a table that continues over all attempts."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked_class
from clusterdp.wording import duration, table

EpochRow = dict[str, Any]
SHAPE = ("epoch", "step")  # columns that are not measurements


class Times(NamedTuple):
    """The time of an epoch's steps in one process, without evaluations."""

    seconds: float | None = None
    samples_per_s: float | None = None  # of all ranks; None if a batch's number of samples is unknown


UNTIMED = Times()


def row_line(row: EpochRow, before: EpochRow, times: Times = UNTIMED) -> str:
    """Returns the line that is printed after an epoch. before: the row of the previous epoch, or {}. The learning rate
    is printed when it has changed."""
    told = {name: value for name, value in row.items() if name != "lr" or value != before.get(name)}
    told = {name: value for name, value in told.items() if not isinstance(value, list)}  # a matrix fits in no line
    words = [f"{name} {_cell(value)}" for name, value in told.items()]
    if times.seconds is not None:
        rate = "" if times.samples_per_s is None else f", {times.samples_per_s:,.0f} samples/s"
        words.append((f"{_amount(times.seconds)} s" if times.seconds < 60 else duration(times.seconds)) + rate)
    return "  ".join(words)


@checked_class
class History:
    """A row per epoch: {"epoch": 1, "step": 180, "loss": 0.7, "val_loss": 0.6}. The rows are equal on all ranks, and
    are saved.

    print(history), history["loss"], history[-1], history.plot("history.png"), pandas.DataFrame(history.rows)

    within: rows of evaluations within an epoch: {"epoch": 1, "step": 90, "val_loss": 0.8}; also saved.

    In a notebook, a History is shown as a table, and history.plot() as a picture.
    """

    def __init__(self, rows: list[EpochRow] | None = None):
        self.rows: list[EpochRow] = rows or []
        self.within: list[EpochRow] = []
        self.validated = 0  # the step of the last evaluation
        self.times: dict[int, Times] = {}  # by epoch, of this process; not saved, because no two runs have the same

    def append(self, row: EpochRow) -> None:
        self.rows.append(row)

    def note_time(self, epoch: int, seconds: float, steps: int, samples: float | None) -> None:
        """Records the time of an epoch's steps in this process. samples: of all ranks; None if unknown."""
        if steps and seconds > 0:
            self.times[epoch] = Times(seconds, None if samples is None else samples / seconds)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[EpochRow]:
        return iter(self.rows)

    def __getitem__(self, which: str | int) -> Any:
        """Returns a column for a name, with None for epochs that lack this number; returns a row for an index."""
        return [row.get(which) for row in self.rows] if isinstance(which, str) else self.rows[which]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def best(self, monitor: str, mode: str = "min") -> EpochRow | None:
        """Returns the first epoch with the least (mode="max": the largest) value; None if no epoch has a value."""
        if mode not in ("min", "max"):
            raise ConfigError(f"mode: {mode!r} is neither min nor max. Use one of them.")
        rows = [row for row in self.rows if row.get(monitor) == row.get(monitor) and row.get(monitor) is not None]
        if self.rows and not any(monitor in row for row in self.rows):
            raise ConfigError(f"monitor: no epoch has a {monitor!r}. There are: {', '.join(self.columns)}.")
        pick = min if mode == "min" else max
        return pick(rows, key=lambda row: row[monitor]) if rows else None

    def __repr__(self) -> str:
        return "\n".join(table(self._cells(), str.rjust))

    def _repr_html_(self) -> str:
        """Returns the table for a notebook."""
        head, *rows = [[html.escape(cell) for cell in row] for row in self._cells()]
        lines = [f"<th>{'<th>'.join(head)}", *(f"<td>{'<td>'.join(row)}" for row in rows)]
        return f"<table><tr>{'<tr>'.join(lines)}</table>"

    def _cells(self) -> list[list[str]]:
        names = [name for name in self.columns if name != "lr" or len(self) < 2 or len({*self[name]}) > 1]
        names = [name for name in names if not any(isinstance(value, list) for value in self[name])]
        timed = [name for name in Times._fields if any(getattr(each, name) is not None for each in self.times.values())]
        rows = [[_cell(row.get(name)) for name in names] for row in self.rows]
        for row, cells in zip(self.rows, rows, strict=True):
            times = self.times.get(row["epoch"], UNTIMED)
            cells += ["-" if (value := getattr(times, name)) is None else _amount(value) for name in timed]
        return [[*names, *(name.replace("_per_", "/") for name in timed)], *rows]

    def plot(self, what: str | Path | None = None, file: str | Path | None = None, **others: History) -> Plot | Path:
        """Plots each measurement with its validation value, over the epochs.

        what: a measurement's name, to plot only this one; or a file such as history.png. Returns the path of the file
        that was written; without a file, a Plot, which a notebook shows. A plot of several measurements leaves out
        measurements that are constant. others: histories of other runs by the names that the plot gives them, as in
        plot("loss", larger=other_history).
        """
        if what is not None and str(what) not in self.columns:
            if not Path(what).suffix:
                raise ConfigError(f"history: {str(what)!r} is not a column. There are: {', '.join(self.columns)}.")
            what, file = None, what if file is None else file
        plot = Plot({"": self, **others}, None if what is None else str(what))
        return plot if file is None else plot.save(file)

    def state_dict(self) -> dict[str, Any]:
        rows = {"rows": [dict(row) for row in self.rows], "within": [dict(row) for row in self.within]}
        return {**rows, "validated": self.validated}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows[:] = [dict(row) for row in state["rows"]]
        self.within[:] = [dict(row) for row in state.get("within", [])]  # older versions have saved none
        self.validated = state.get("validated", 0)


class Plot:
    """A picture of one or several histories, which a notebook shows. figure: matplotlib's Figure."""

    def __init__(self, histories: Mapping[str, History], only: str | None = None):
        try:
            from matplotlib.figure import Figure  # Figure opens no window, and changes no global state
            from matplotlib.ticker import MaxNLocator
        except ImportError:
            raise ConfigError("history: matplotlib is not installed. pip install 'clusterdp[plots]'.") from None
        panels = _panels(histories.values(), only)
        self.figure = Figure(figsize=(6, 2.6 * max(1, len(panels))), layout="constrained")
        for place, columns in enumerate(panels):
            axes = self.figure.add_subplot(len(panels), 1, place + 1)
            for number, (name, history) in enumerate(histories.items()):
                for column in (column for column in columns if column in history.columns):
                    style = "-" if len(histories) == 1 or column == columns[0] else "--"
                    colour = None if len(histories) == 1 else f"C{number}"
                    marker = "." if len(history) < 30 else None
                    label = f"{column} ({name})" if name else column
                    points = [(row["epoch"], row[column]) for row in history if row.get(column) is not None]
                    axes.plot(*zip(*points, strict=True), style, color=colour, marker=marker, label=label)
            epochs = [epoch for history in histories.values() for epoch in history["epoch"]]
            axes.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)  # also shows a single epoch
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.set_xlabel("epoch")
            axes.legend()
            axes.grid(alpha=0.3)

    def __repr__(self) -> str:
        return "a Plot: save(file) writes it, and a notebook shows it"

    def save(self, file: str | Path) -> Path:
        """Writes the picture, in the format that the file's name ends with."""
        self.figure.savefig(file)
        return Path(file)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png")
        return file.getvalue()


def _panels(histories: Iterable[History], only: str | None) -> list[list[str]]:
    """Returns the columns of each panel: a measurement and its validation value."""
    values: dict[str, list[Any]] = {}
    for history in histories:
        for name in history.columns:
            values.setdefault(name, []).extend(history[name])
    names = [n for n in values if n not in SHAPE and n.removeprefix("val_") == n]
    names += [n for n in values if n.startswith("val_") and n.removeprefix("val_") not in names]
    of_each = [[n for n in (name, f"val_{name}") if n in values and _numeric(values[n])] for name in names]
    if only is not None:
        return [[n for n in (only, f"val_{only}") if n in values]]
    change = [columns for columns in of_each if any(len({*values[n]}) > 1 for n in columns)]
    return change or [columns for columns in of_each if columns]


def _numeric(column: list[Any]) -> bool:
    return all(isinstance(value, int | float) or value is None for value in column)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
