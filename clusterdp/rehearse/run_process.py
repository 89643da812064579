"""RunProcesses: starts a run in a process of its own, reads its progress, and ends it with the rehearsal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.rehearse.run_spec import RunResult, RunSpec

END_S = 30.0  # seconds that a run has to stop its cluster, or to cancel its job
Tell = Callable[[int | None, str], None]


class RunProcesses:
    """The run processes of all threads that are alive. end() ends all these processes, with their fake clusters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, spec: RunSpec, tell: Tell) -> RunResult:
        """Makes a run, and returns when the run is over. Raises RunError if the run could not be made, or if end() was
        called."""
        command = [sys.executable, "-m", "clusterdp.rehearse.one_run"]
        log = Path(f"{spec.folder}.log")
        with log.open("w") as said:
            process = subprocess.Popen(
                command,
                cwd=spec.submit_dir,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the rehearsal itself, which then ends its runs in order
            )
        with self._lock:
            self._live.add(process)
        try:
            if self._ended:
                raise RunError("rehearse: was interrupted.")
            return self._listen(process, spec, tell, log)
        finally:
            with self._lock:
                self._live.discard(process)
            _end(process)

    def _listen(self, process: subprocess.Popen[str], spec: RunSpec, tell: Tell, log: Path) -> RunResult:
        assert process.stdin and process.stdout
        with process.stdin as sent:
            json.dump(asdict(spec), sent)
        result: RunResult | None = None
        error = ""
        for line in process.stdout:
            record = json.loads(line)
            if "result" in record:
                result = RunResult.from_json(record["result"])
            elif "error" in record:
                error = record["error"]
            else:
                tell(record["step"], record["doing"])
        process.wait()
        if result is None:
            raise RunError(f"rehearse: {spec.name}: {error or f'its run could not be made; see {log}'}")
        if not log.stat().st_size:
            log.unlink()
        return result

    def end(self) -> None:
        with self._lock:
            self._ended = True
            live = [*self._live]
        for process in live:
            with suppress(ProcessLookupError):  # the process has just ended by itself
                os.killpg(process.pid, signal.SIGTERM)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the process by SIGTERM. After SIGTERM, the process ends its job, which on a real cluster would otherwise go
    on."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
