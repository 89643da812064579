"""Reserve: a step of ranks that wait for the next attempt in this allocation, with torch loaded.

Its srun runs the same command as that of the ranks, and shares their CPUs, memory and GPUs. Each task loads torch, at
a low priority, touches no GPU, and waits (train/process/reserve.py). When the next attempt begins, the tasks get its
variables through srun's stdin, and become its ranks. At the end of stdin they end. Each attempt has a step of its own,
so that nothing of an earlier one is left.
"""

import json
import math
import os
import subprocess
import sys
import time
from typing import List, Mapping, Optional, Sequence, Tuple

from ..files.job import COLD, EXPORTED, LOADED, RESERVE, Job
from ..files.rules import Rules
from ..files.texts import warn
from ..processes.children import Children, end
from ..processes.slurm import steps_share_memory
from .errors import Errors

END_S = 2.0  # limit of the seconds in which the tasks end by themselves
AGAIN_S = 10.0  # seconds between two looks whether the ranks have loaded torch
LOGS = "next"  # folder of the logs in that of the attempt before


class Reserve:
    def __init__(self, rules: Rules, children: Children) -> None:
        self.children = children
        self.is_wanted = rules.warm_after_s is not None and sys.platform == "linux"
        self._after_s, self._nodes = rules.warm_after_s or 0.0, rules.nodes
        self._at = math.inf  # time from which the step may start
        self._step: "Optional[subprocess.Popen[bytes]]" = None
        self._errors: Optional[Errors] = None
        self._job: Optional[Job] = None  # the attempt before that of the waiting tasks
        self._unused: List[str] = []  # folders of logs

    def begin(self) -> None:
        """Notes the start of the ranks."""
        if self.is_wanted:
            self._at = time.monotonic() + self._after_s

    @property
    def left_s(self) -> float:
        """Seconds until is_due() becomes true."""
        return max(self._at - time.monotonic(), 0.0)

    def is_due(self) -> bool:
        """Returns whether start() must be called. Called every few seconds."""
        self._look()
        return time.monotonic() >= self._at

    def _look(self) -> None:
        """Ends the other tasks if one has ended, because they hold memory."""
        if self._step is not None and self._errors is not None:
            self._errors.copy()
            if self._errors.how or self._step.poll() is not None:
                self.close()

    def start(self, words: Sequence[str], environ: Mapping[bytes, bytes], job: Job) -> None:
        """Starts the step, if the ranks have loaded torch themselves: a shared file system must not serve both at the
        same time. words: the srun command of the ranks, which logs to logs_of(job). job: the present attempt."""
        self._at = math.inf
        if not os.path.exists(job.file(LOADED)):
            self._at = time.monotonic() + max(self._after_s, AGAIN_S)
            return
        if os.path.exists(job.file(COLD)) or not steps_share_memory(self.children):
            self.is_wanted = False
            return
        self._job, self._errors, logs = job, Errors(holds=True), logs_of(job)
        own = {RESERVE: "1", "CLUSTERDP_ATTEMPT": job.after.attempt}
        environ = {**environ, **{os.fsencode(name): os.fsencode(value) for name, value in own.items()}}
        environ.pop(b"SLURM_STDINMODE", None)  # all tasks read
        words = [words[0], "--overlap", *(word for word in words[1:] if word != "--overlap")]
        try:
            os.makedirs(logs, exist_ok=True)
            step = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=self._errors.writing, env=environ)
        except OSError as error:
            warn("the ranks in reserve: {}".format(error))
            self._errors.close()
            return
        finally:
            os.close(self._errors.writing)
        assert step.stdin is not None
        self.children.private.append(step.stdin.fileno())
        self._step = step

    def take(self, environ: Mapping[bytes, bytes], job: Job) -> "Optional[Tuple[subprocess.Popen[bytes], Errors]]":
        """Makes the tasks the ranks of an attempt. Returns their srun and its stderr; None if not all tasks are there.
        environ: the environment of the ranks."""
        self._at = math.inf
        step, errors, before = self._step, self._errors, self._job
        if step is None or errors is None or before is None or before.life == job.life:
            return None
        errors.copy()
        is_cold = os.path.exists(before.file(COLD))
        if is_cold or step.poll() is not None or errors.how or not self._have_all_started(logs_of(before)):
            self.close()
            return None
        variables = {name: _text(environ.get(os.fsencode(name))) for name in EXPORTED}
        try:
            os.makedirs(job.here, exist_ok=True)
            os.rename(logs_of(before), job.logs)
            os.utime(job.logs)  # the start of the ranks
            assert step.stdin is not None
            os.write(step.stdin.fileno(), json.dumps(variables).encode("ascii") + b"\n")
        except OSError as error:
            warn("the ranks in reserve: {}".format(error))
            self.close()
            return None
        self._let_go()
        errors.holds = False
        return step, errors

    def _have_all_started(self, logs: str) -> bool:
        """Returns whether each node has its log, which slurmstepd opens before it starts the tasks. It would not find
        the folder later."""
        try:
            return len(os.listdir(logs)) == self._nodes
        except OSError:
            return False

    def _let_go(self) -> None:
        assert self._step is not None and self._step.stdin is not None
        self.children.private.remove(self._step.stdin.fileno())
        self._step.stdin.close()
        self._step = self._errors = None

    def close(self, limit_s: float = END_S) -> None:
        """Ends the tasks. limit_s: seconds in which they end by themselves, and then those until srun is killed, which
        waits for tasks on a lost node."""
        self._at = math.inf
        step, errors = self._step, self._errors
        if step is None or errors is None:
            return
        self._let_go()
        try:
            step.wait(limit_s)
        except subprocess.TimeoutExpired:
            step.terminate()  # on TERM, srun sends KILL to the tasks
            try:
                step.wait(limit_s)
            except subprocess.TimeoutExpired:
                end(step)
        os.close(errors.reading)
        if self._job is not None:
            self._unused.append(logs_of(self._job))

    def tidy(self) -> None:
        """Removes logs that were not used, at the end of the job: with thousands of ranks this takes seconds."""
        for folder in self._unused:
            _remove(folder)


def logs_of(job: Job) -> str:
    """Returns the folder of the logs of the next attempt before it begins."""
    return job.file(LOGS)


def _text(value: Optional[bytes]) -> Optional[str]:
    return None if value is None else os.fsdecode(value)


def _remove(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass
