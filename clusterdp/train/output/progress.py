"""Progress: shows the progress of rank 0, as a sink of job.metrics: one changing line on a terminal, lines in a log.
StepLines: a line every N steps in each rank's log.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import torch

from clusterdp.train.output.say import say
from clusterdp.wording import duration

SHORTEST_S, LONGEST_S = 10.0, 300.0  # seconds between two lines of a log, which become fewer as a run lasts longer
WINDOW_S = 10.0  # seconds that the means on a terminal cover
PLACE = frozenset({"time", "step", "total", "epoch", "phase"})  # fields of a record that are not measurements
_RATE = re.compile(r"(?i)(^|[^a-z])(lr|learning_rate)([^a-z]|$)")  # a learning rate is set, not measured


class Progress:
    """Shows records of steps, with means of their measurements. The means cover the records since the previous line in
    a log, or the last 10 s on a terminal. A learning rate is shown without averaging. The means use only the records
    that MetricLog keeps (not one for each step), and cost a step nothing.

    epochs: the number of epochs; 0 if it is unknown. samples: samples per step, over all ranks; None if unknown. out:
    standard error by default. If out is not a terminal, Progress prints lines as in a log.
    """

    def __init__(self, epochs: int, samples: float | None = None, out: TextIO | None = None):
        self.epochs, self.samples = epochs, samples
        self.out = out or sys.stderr
        self.live = self.out.isatty()
        self._due = 0.0
        self._first: tuple[float, int] | None = None
        self._shown = 0
        self._measured: deque[tuple[float, dict[str, float]]] = deque()  # (time, values) of records for the next line
        self._phase: Any = None

    def __call__(self, record: Mapping[str, Any]) -> None:
        step, total = record.get("step"), record.get("total")
        if step is None or "epoch" not in record or total is None:
            return
        if self._first is None:
            self._first = (record["time"], step)
            self._due = record["time"] + SHORTEST_S
        self._add(record)
        if not self.live and record["time"] < self._due:
            return
        words = [record["phase"]] if "phase" in record else []
        of = f"/{self.epochs}" if self.epochs else ""
        words += [f"epoch {record['epoch'] + 1}{of}", f"step {step}/{total}"]
        seconds, steps = record["time"] - self._first[0], step - self._first[1]
        if steps and seconds > 0:
            rate = steps / seconds
            words.append(f"{rate:.3g} steps/s")
            if self.samples is not None:
                words.append(f"{rate * self.samples:,.0f} samples/s")
            words.append(f"{duration(seconds)}, {duration((total - step) / rate)} to go")
        words += [f"{name} {value:.4g}" for name, value in self._means()]
        if self.live:
            self._show("  ".join(words))
        else:
            self._due = record["time"] + min(LONGEST_S, max(SHORTEST_S, seconds / 20))
            self._measured.clear()
            say("clusterdp: " + "  ".join(words))

    def _add(self, record: Mapping[str, Any]) -> None:
        if record.get("phase") != self._phase:  # in another phase, the same name may mean another loss
            self._phase = record.get("phase")
            self._measured.clear()
        values = {name: _number(value) for name, value in record.items() if name not in PLACE}
        self._measured.append((record["time"], {name: value for name, value in values.items() if value is not None}))
        while self.live and self._measured[0][0] <= record["time"] - WINDOW_S:
            self._measured.popleft()

    def _means(self) -> Iterator[tuple[str, float]]:
        found: dict[str, list[float]] = {}
        for _, values in self._measured:
            for name, value in values.items():
                found.setdefault(name, []).append(value)
        for name, values_of in found.items():
            yield name, values_of[-1] if _RATE.search(name) else sum(values_of) / len(values_of)

    def close(self) -> None:
        """Clears the line on the terminal."""
        if not self.live:
            return
        self._show("")
        self.out.write("\r")
        self.out.flush()

    def _show(self, line: str) -> None:
        self.out.write("\r" + line.ljust(self._shown))
        self.out.flush()
        self._shown = len(line)


class StepLines:
    """Prints a line in this rank's log every `every` steps, with the means of the rank's own values since then. Values
    are added up on their device, and read for a line only. samples: samples of this rank in a step."""

    def __init__(self, every: int, samples: int | None):
        self.every, self.samples = every, samples
        self._sums: dict[str, Any] = {}
        self._steps, self._since = 0, time.monotonic()

    def add(self, step: int, total: int | None, values: Mapping[str, Any], *, ends: bool = True) -> None:
        """Adds the values of a batch. ends: whether it is the last of its step."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                value = value.detach()
            elif not isinstance(value, int | float):
                continue
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._steps += 1
        if not ends or step % self.every:
            return
        means = [f"{name} {float(value) / self._steps:.4g}" for name, value in self._sums.items()]
        seconds = time.monotonic() - self._since  # after the values have been read, which waits for a GPU
        rate = f"{seconds:.3g} s" + (f", {self._steps * self.samples / seconds:,.0f} samples/s" if self.samples else "")
        say("clusterdp: " + "  ".join([f"step {step}" + (f"/{total}" if total else ""), *means, rate]))
        self._sums, self._steps, self._since = {}, 0, time.monotonic()


def _number(value: Any) -> float | None:
    """Returns the value as a number; None if it is not a number. NaN and infinity are strings in a record, because JSON
    lacks both."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
