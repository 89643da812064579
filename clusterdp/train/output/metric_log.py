"""MetricLog: writes numbers from the loop to `metrics/<attempt>.jsonl`, without waiting for the GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from clusterdp.errors import ConfigError
from clusterdp.rundir import append_line
from clusterdp.train.output.best_effort import FULL, BestEffortFile
from clusterdp.train.output.say import say

Value = Any  # a number, a tensor of one element, or a string
Sink = Callable[[dict[str, Any]], None]  # a function that is called with each written record of numbers and strings

SHORTEST_S, LONGEST_S = 0.1, 5.0  # seconds between two records of steps, which become fewer as a run lasts longer


class MetricLog:
    """Writes metrics on rank 0. Other ranks, and runs without a folder, pass None as path; then every method does
    nothing.

    Records of steps are thinned by time, and the newest is kept. A CUDA tensor is copied to the host asynchronously.
    The copy is read when a later record is due, long after it has arrived. While the disk is full, records are lost and
    the training continues.
    """

    def __init__(self, path: Path | None, every_s: float | None = None, sinks: Sequence[Sink] = ()):
        self.path, self.every_s = path, every_s
        self.sinks = list(sinks)
        self._best_effort = BestEffortFile(path) if path is not None else None
        self._full: dict[int, BestEffortFile] = {}  # id of a sink -> the errors of its full disk
        self._began = time.time()
        self._due = 0.0
        self._waiting: list[tuple[dict[str, Value], list[Any]]] = []  # (record, a CUDA event of each GPU)
        self._newest: tuple[float, dict[str, Value], dict[str, Value]] | None = None  # (time, fields, values)

    @property
    def is_due(self) -> bool:
        """Whether a step's record would be written now."""
        return (self.path is not None or bool(self.sinks)) and time.time() >= self._due

    def step(self, fields: dict[str, Value], values: dict[str, Value]) -> None:
        """Records a step: fields such as step and epoch, and the user's logged values, without autograd graphs."""
        if self.path is None and not self.sinks:
            return
        now = time.time()
        if now < self._due:
            self._newest = now, fields, values
            return
        self._due = now + self._pause(now)
        self._newest = None
        self._enqueue({"time": now, **fields, **values})
        self._write(wait=False)

    def write(self, **values: Value) -> None:
        """Writes a record at once, without thinning: a result such as an accuracy."""
        if self.path is None and not self.sinks:
            return
        self.flush()
        self._enqueue({"time": time.time(), **values})
        self._write(wait=True)

    def flush(self) -> None:
        """Writes all records, including the newest step's."""
        if self._newest is not None:
            now, fields, values = self._newest
            self._enqueue({"time": now, **fields, **values})
            self._newest = None
        self._write(wait=True)

    def close(self) -> None:
        """Writes all records and closes the sinks, at the end of the attempt."""
        self.flush()
        for sink in self.sinks:
            if callable(close := getattr(sink, "close", None)):
                try:
                    close()
                except Exception as error:  # a sink's error must not fail a training that is complete
                    say(f"clusterdp: metrics: {type(sink).__name__} was not closed: {_line(error)}", error=True)
        self.sinks.clear()

    def _hand(self, sink: Sink, record: dict[str, Any]) -> None:
        """Passes a record to a sink. If the sink fails, the training continues, and the file still has the record. A
        sink on a full disk gets records again. A server that has failed gets no more records, because each try may take
        minutes."""
        try:
            with self._full.setdefault(id(sink), BestEffortFile(type(sink).__name__, FULL)):
                sink(record)
        except Exception as error:
            self.sinks.remove(sink)
            say(f"clusterdp: metrics: {type(sink).__name__} gets no more records: {_line(error)}", error=True)

    def _pause(self, now: float) -> float:
        if self.every_s is not None:
            return self.every_s
        return min(LONGEST_S, max(SHORTEST_S, (now - self._began) / 200))

    def _enqueue(self, record: dict[str, Value]) -> None:
        for name, value in record.items():
            check_number(name, value)
        copies = {name: to_host(value) for name, value in record.items()}
        devices = {value.device for value in record.values() if isinstance(value, torch.Tensor) and value.is_cuda}
        events = [torch.cuda.current_stream(device).record_event() for device in devices]  # streams that copy
        self._waiting.append((copies, events))

    def _write(self, *, wait: bool) -> None:
        while self._waiting:
            record, events = self._waiting[0]
            for event in events:
                if not event.query():
                    if not wait:
                        return
                    event.synchronize()
            written = {name: plain(value) for name, value in record.items()}
            del self._waiting[0]
            if self.path is not None and self._best_effort is not None:
                with self._best_effort:
                    append_line(self.path, written)
            for sink in list(self.sinks):
                self._hand(sink, written)


def check_number(name: str, value: Value) -> None:
    """Raises ConfigError for a tensor or an array of several numbers."""
    shape = getattr(value, "shape", ())
    if shape and math.prod(shape) != 1:
        raise ConfigError(f"log: {name} has the shape {tuple(shape)}. Log a number, such as its mean().")


def _line(error: Exception) -> str:
    return str(error).split("\n")[0] or type(error).__name__


def to_host(value: Value) -> Value:
    """Returns a tensor's copy on the host, which arrives later from a GPU; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_cuda:
        return value.detach().clone()  # the caller may change the tensor in place in the next step
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value.detach(), non_blocking=True)


def plain(value: Value) -> Value:
    """Returns a value as JSON has it."""
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)  # JSON has no NaN, but a reader should see that the value was NaN
    return value
