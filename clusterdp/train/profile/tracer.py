"""Tracer: torch.profiler over a few steps, as a file that a browser shows (https://ui.perfetto.dev, chrome://tracing).

    tracer = Tracer(folder / "trace.json.gz", start=20, steps=5)
    for x, y in loader:
        ...
        tracer.step()                       # after each step; the tracer ends, and writes, by itself

In a job, the config's `profile.trace` starts a Tracer. A traced step takes longer; other steps cost nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from clusterdp.train.argument_names import checked_class
from clusterdp.train.output.best_effort import BestEffortFile
from clusterdp.train.output.say import say
from clusterdp.train.profile.stopwatch import Stopwatch

WARM_UP = 1  # number of steps that the profiler needs before the first recorded step


@checked_class
class Tracer:
    """start: the first traced step, counted from 1; at least 3, because the profiler starts after an earlier step."""

    def __init__(self, file: str | os.PathLike[str], *, start: int = 10, steps: int = 5):
        self.file = Path(file)
        self.start, self.steps = start, steps
        self._done = 0
        self._profile: Any = None

    def step(self) -> None:
        """Ends a step, and starts or ends the profiler at the right step."""
        self._done += 1
        if self._profile is not None:
            self._profile.step()
            if self._done >= self.start + self.steps - 1:
                self.close()
        elif self._done == self.start - WARM_UP - 1:
            self._begin()

    def close(self) -> None:
        """Ends the profiler, and writes the steps that were traced so far."""
        running, self._profile = self._profile, None
        if running is None:
            return
        running.stop()
        if self._done < self.start:
            return
        with BestEffortFile(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(self.file))
            say(f"clusterdp: steps {self.start} to {self._done} are traced in {self.file}")

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        plan = schedule(wait=0, warmup=WARM_UP, active=self.steps, repeat=1)
        self._profile = profile(activities=activities, schedule=plan)
        self._profile.start()


class TracingStopwatch(Stopwatch):
    """The stopwatch of a job that traces steps. Other jobs have a plain Stopwatch, so that tracing costs them
    nothing."""

    def __init__(self, tracer: Tracer):
        super().__init__()
        self.tracer = tracer

    def step(self) -> None:
        super().step()
        self.tracer.step()

    def report(self, *words: Any, **facts: Any) -> dict[str, Any] | None:
        self.tracer.close()
        return super().report(*words, **facts)
