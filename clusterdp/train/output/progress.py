"""Progress: a progress line on rank 0's terminal, as a sink of job.metrics."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from clusterdp.wording import duration


class Progress:
    """Shows records of steps. MetricLog has thinned them by time, so it costs a step nothing."""

    def __init__(self, epochs: int, out: TextIO | None = None):
        self.epochs = epochs
        self.out = out or sys.stderr
        self._first: tuple[float, int] | None = None
        self._shown = 0

    def __call__(self, record: Mapping[str, Any]) -> None:
        step, total = record.get("step"), record.get("total")
        if step is None or "epoch" not in record or total is None:
            return
        if self._first is None:
            self._first = (record["time"], step)
        words = [record["phase"]] if "phase" in record else []
        words += [f"epoch {record['epoch'] + 1}/{self.epochs}", f"step {step}/{total}"]
        seconds, steps = record["time"] - self._first[0], step - self._first[1]
        if steps and seconds > 0:
            rate = steps / seconds
            words += [f"{rate:.3g} steps/s", f"{duration((total - step) / rate)} to go"]
        place = ("time", "step", "total", "epoch", "phase")
        words += [f"{name} {value:.4g}" for name, value in record.items() if name not in place and _is_number(value)]
        self._show("  ".join(words))

    def close(self) -> None:
        """Clears the line."""
        self._show("")
        self.out.write("\r")
        self.out.flush()

    def _show(self, line: str) -> None:
        self.out.write("\r" + line.ljust(self._shown))
        self.out.flush()
        self._shown = len(line)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
