"""Progress: how far rank 0 is, as a sink of job.metrics: a line that changes on a terminal, lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from clusterdp.train.output.say import say
from clusterdp.wording import duration

SHORTEST_S, LONGEST_S = 10.0, 300.0  # between two lines of a log: the longer a run lasts, the fewer it needs


class Progress:
    """Shows records of steps. MetricLog has thinned them by time, so it costs a step nothing.

    samples: of a step, over all ranks; None if that is not known. out: default: standard error, where that is a
    terminal; else lines go to the log.
    """

    def __init__(self, epochs: int, samples: float | None = None, out: TextIO | None = None):
        self.epochs, self.samples = epochs, samples
        self.out = out or sys.stderr
        self.live = self.out.isatty()
        self._due = 0.0
        self._first: tuple[float, int] | None = None
        self._shown = 0

    def __call__(self, record: Mapping[str, Any]) -> None:
        step, total = record.get("step"), record.get("total")
        if step is None or "epoch" not in record or total is None:
            return
        if self._first is None:
            self._first = (record["time"], step)
            self._due = record["time"] + SHORTEST_S
        if not self.live and record["time"] < self._due:
            return
        words = [record["phase"]] if "phase" in record else []
        words += [f"epoch {record['epoch'] + 1}/{self.epochs}", f"step {step}/{total}"]
        seconds, steps = record["time"] - self._first[0], step - self._first[1]
        if steps and seconds > 0:
            rate = steps / seconds
            words.append(f"{rate:.3g} steps/s")
            if self.samples is not None:
                words.append(f"{rate * self.samples:,.0f} samples/s")
            words.append(f"{duration(seconds)}, {duration((total - step) / rate)} to go")
        place = ("time", "step", "total", "epoch", "phase")
        words += [f"{name} {value:.4g}" for name, value in record.items() if name not in place and _is_number(value)]
        if self.live:
            self._show("  ".join(words))
        else:
            self._due = record["time"] + min(LONGEST_S, max(SHORTEST_S, seconds / 20))
            say("clusterdp: " + "  ".join(words))

    def close(self) -> None:
        """Clears the line."""
        if not self.live:
            return
        self._show("")
        self.out.write("\r")
        self.out.flush()

    def _show(self, line: str) -> None:
        self.out.write("\r" + line.ljust(self._shown))
        self.out.flush()
        self._shown = len(line)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
