"""Observer: watches an undisturbed run for the Facts that the drills and the diagnosis need."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from clusterdp.batch.files.rank_logs import text_of
from clusterdp.checkpoint.format.manifest import list_checkpoints
from clusterdp.fakeslurm.core.file_traps import DELETE
from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_events import FileEvents, is_binary
from clusterdp.rehearse.observe.file_use import FileUse, is_best
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rehearse.observe.printed_steps import counter_of, read_steps
from clusterdp.rehearse.observe.save_shape import (
    SaveShape,
    is_state,
    learn,
    named,
    own_name,
    with_open_files,
    with_pointers,
)
from clusterdp.rundir import RunDir

EVERY_S = 0.02


class Observer:
    """Watches the ranks in a thread of its own, until facts() is called."""

    def __init__(self, live: LiveRun):
        self._live = live
        self._written: dict[str, int] = {}
        self._ports: set[int] = set()
        self._evaluates = False
        self._began: float | None = None
        self._first_step: float | None = None
        self._last: float | None = None
        self._steps: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        turn = 0
        while not self._over.wait(EVERY_S):
            ranks = self._live.ranks()
            pids = [pid for pids in ranks.values() for pid in pids]
            if not pids:
                continue
            now, step = time.monotonic(), self._live.step()
            self._began, self._last = self._began or now, now
            if step:
                self._first_step, self._steps = self._first_step or now, max(step, self._steps or 0)
            self._evaluates |= self._live.phase() == processes.EVALUATION
            for file in processes.written_files(pids):
                if not self._is_bookkeeping(file.path):
                    self._written[file.path] = max(file.size, self._written.get(file.path, 0))
            if turn % 50 == 0:
                self._ports |= processes.listening_ports(pids) - processes.master_ports(pids)
            turn += 1

    def _is_bookkeeping(self, path: str) -> bool:
        """Whether clusterdp itself wrote the file: it is in the run folder, but outside of the program's working
        folder."""
        run = self._live.run
        return path.startswith(f"{run.path}/") and not path.startswith(f"{run.code}/")

    def facts(self, took_s: float, files: dict[str, FileUse], events: FileEvents | None) -> Facts:
        """Ends the watch, and returns the Facts. `took_s`: the run's time, used if its ranks were never seen. `events`:
        the file events of the run's tasks."""
        self._over.set()
        self._thread.join()
        run = self._live.run
        history = read_history(run)
        ours = list_checkpoints(run.checkpoints)
        began = self._began or 0.0
        if events:  # a small file is open too briefly to be seen
            names = [each.to or each.path for each in events.events if each.kind != DELETE]
            seen = (path for path in names if own_name(run, path) and not self._is_bookkeeping(path))
            self._written = {**dict.fromkeys(seen, 0), **self._written}
        for path in self._written:
            with suppress(OSError):
                self._written[path] = os.stat(path).st_size
        saves = _save_shape(run, events, self._written) if events else SaveShape()
        files = {path: use for path, use in files.items() if is_state(run, saves, path)}
        return Facts(
            ours=bool(ours),
            steps=history.step if ours else max(self._printed(), default=self._steps),
            took_s=(self._last or 0.0) - began if self._last else took_s,
            start_s=(self._first_step or began) - began,
            evaluates=self._evaluates,
            written=dict(sorted(self._written.items())),
            ports=sorted(self._ports),
            counter=self._counter(),
            saved_at=sorted({step for path, use in files.items() if not is_best(path) for step in use.steps if step}),
            files=files,
            saves=saves,
        )

    def _printed(self) -> list[int]:
        attempt = self._live.attempt
        return read_steps(attempt, self._counter()) if attempt else []

    def _counter(self) -> str:
        attempt = self._live.attempt
        return counter_of(text_of(str(attempt.logs), 0)) if attempt else ""


def _save_shape(run: RunDir, events: FileEvents, written: Iterable[str]) -> SaveShape:
    logs = events.logs
    own = [event for event in (named(run, each) for each in events.events if each.path not in logs) if event]
    binary = {path: size for path, size in events.binary.items() if path not in logs}
    shape = learn(own, {name: size for path, size in binary.items() if (name := own_name(run, path))})
    opened = (name for path in written if path not in logs and is_binary(path) and (name := own_name(run, path)))
    return with_open_files(with_pointers(shape, own, run), opened)
