"""Job: the handle of a submitted run, for Python code on the login node."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from clusterdp.batch.files.rank_logs import text_of
from clusterdp.errors import RunError
from clusterdp.rundir import RunDir, mark_cancelled, mark_told, read_events
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import asking, cluster_in
from clusterdp.slurm.state import JobState

BUSY = frozenset({"RUNNING", "COMPLETING"})


@dataclass
class Job:
    """`id` is the id of the first job. After a resubmission or a resume, the run continues as the job `current_id`."""

    id: str
    run: RunDir
    submitit: Any = field(default=None, repr=False)  # with backend: submitit, submitit's own Job
    cluster: str = field(default="", repr=False)  # the name in sbatch's answer; empty for the default cluster

    @property
    def current_id(self) -> str:
        return self._current[0]

    @property
    def _current(self) -> tuple[str, str]:
        """The id of the newest job, and its cluster."""
        sent = [event for event in read_events(self.run) if event.get("event") == "submitted" and "job" in event]
        cluster = next((cluster_in(str(e["cluster"])) for e in reversed(sent) if "cluster" in e), self.cluster)
        return str(sent[-1]["job"]) if sent else self.id, cluster

    @property
    def state(self) -> str:
        """The job's state in Slurm's word (PENDING, RUNNING, COMPLETED, ...); UNKNOWN once Slurm has forgotten the
        job."""
        job, cluster = self._current
        with asking(cluster):
            row = commands.job_states([job]).get(job)
        if row is None:
            return self._last_word()
        # Slurm may requeue a job whose run is done: the new attempt finds the run done, and ends at once.
        return row.state if row.state in BUSY or not self._has_finished(job) else JobState.COMPLETED.value

    def wait(self, timeout_s: float | None = None, poll_s: float = 2.0, *, progress: bool | None = None) -> str:
        """Waits until the run is over, also through requeues. Returns the job's last state. Raises RunError after
        `timeout_s`.

        progress: whether to print each event and the progress, as `clusterdp watch` does; by default in notebooks.
        """
        from clusterdp.operate.notebook import progress_of

        show = progress_of(self.run) if progress or (progress is None and in_notebook()) else lambda: None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (state := self.state) != "UNKNOWN" and not JobState.parse(state).final:
            show()
            if deadline is not None and time.monotonic() > deadline:
                raise RunError(f"{self.run.path}: is still {state} after {timeout_s} s. Wait longer, or cancel() it.")
            time.sleep(poll_s)
        show()
        return state

    def _repr_html_(self) -> str:
        """Returns state, attempts and a curve, for a notebook."""
        from clusterdp.operate.notebook import run_html

        return run_html(self.run)

    def cancel(self) -> None:
        """Cancels the run for good: no further attempt starts."""
        job, cluster = self._current
        mark_cancelled(self.run, job)
        with asking(cluster):
            commands.cancel(job)
        mark_told(self.run, job)

    def logs(self, rank: int = 0) -> str:
        """Returns the output of a rank in all attempts so far."""
        return "".join(text_of(str(attempt.logs), rank) for attempt in self.run.attempts())

    def result(self) -> Any:
        """Waits for the job, and returns the entry's result on rank 0. Works only with backend: submitit, because
        sbatch returns no result."""
        if self.submitit is None:
            raise RunError("job.result(): a script only has an exit code. Use submit_function(), or write a file.")
        return self.submitit.result()

    def _has_finished(self, job: str) -> bool:
        endings = (e for e in read_events(self.run) if e.get("event") == "finished" and e.get("cause") == "done")
        return any(str(ending.get("attempt")).partition(".")[0] == job for ending in endings)

    def _last_word(self) -> str:
        endings = [str(event.get("event")) for event in read_events(self.run)]
        words = {"finished": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}
        return next((words[ending] for ending in reversed(endings) if ending in words), "UNKNOWN")


def in_notebook() -> bool:
    return "ipykernel" in sys.modules
