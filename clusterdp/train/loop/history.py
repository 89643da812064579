"""History: the numbers of each epoch, as a table that continues over all attempts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterdp.errors import ConfigError
from clusterdp.wording import table

EpochRow = dict[str, Any]
SHAPE = ("epoch", "step")  # columns that are not measurements


def row_line(row: EpochRow) -> str:
    return "  ".join(f"{name} {_cell(value)}" for name, value in row.items())


class History:
    """A row per epoch: {"epoch": 1, "step": 180, "loss": 0.7, "val_loss": 0.6}. The rows are equal on all ranks, and
    are saved.

    print(history), history["loss"], history[-1], history.plot("history.png"), pandas.DataFrame(history.rows)
    """

    def __init__(self, rows: list[EpochRow] | None = None):
        self.rows: list[EpochRow] = rows or []

    def append(self, row: EpochRow) -> None:
        self.rows.append(row)

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
        return [self.columns, *([_cell(row.get(name)) for name in self.columns] for row in self.rows)]

    def plot(self, file: str | Path) -> Path:
        """Plots each measurement with its validation value into a file such as history.png. With a measurement's name
        as `file`, plots only this one: "loss" is drawn into loss.png. A plot of several measurements leaves out
        measurements that are constant over all epochs."""
        try:
            from matplotlib.figure import Figure  # Figure opens no window, and changes no global state
            from matplotlib.ticker import MaxNLocator
        except ImportError:
            raise ConfigError("history: matplotlib is not installed. pip install 'clusterdp[plots]'.") from None
        names = [n for n in self.columns if n not in SHAPE and n.removeprefix("val_") == n]
        names += [n for n in self.columns if n.startswith("val_") and n.removeprefix("val_") not in names]
        if str(file) in self.columns:
            names, file = [str(file)], f"{file}.png"
        lines = {name: [n for n in (name, f"val_{name}") if n in self.columns and _numeric(self[n])] for name in names}
        told = {name: of for name, of in lines.items() if any(len({*self[n]}) > 1 for n in of)} or lines
        told = {name: of for name, of in told.items() if of}
        figure = Figure(figsize=(6, 2.6 * max(1, len(told))), layout="constrained")
        for place, columns in enumerate(told.values()):
            axes = figure.add_subplot(len(told), 1, place + 1)
            for column in columns:
                axes.plot(self["epoch"], self[column], marker="." if len(self) < 30 else None, label=column)
            axes.set_xlim(min(self["epoch"]) - 0.5, max(self["epoch"]) + 0.5)  # also shows a single epoch
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.set_xlabel("epoch")
            axes.legend()
            axes.grid(alpha=0.3)
        figure.savefig(file)
        return Path(file)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows[:] = [dict(row) for row in state["rows"]]


def _numeric(column: list[Any]) -> bool:
    return all(isinstance(value, int | float) or value is None for value in column)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
