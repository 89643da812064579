"""One squeue for all runs of a cluster, however many there are."""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.errors import SlurmError
from clusterdp.operate.formatting import shown_path
from clusterdp.operate.queue import NO_CLUSTER, RunStatus, status_by
from clusterdp.operate.run_cluster import commands_of, is_gone, is_here
from clusterdp.operate.run_history import RunHistory
from clusterdp.slurm import commands
from clusterdp.wording import counted

TIMEOUT_S = 20.0  # for each cluster; Slurm's own patience is 10 s

Rows = dict[str, commands.SqueueRow]


def ask_squeue(histories: Sequence[RunHistory]) -> tuple[list[tuple[RunStatus, bool]], list[str]]:
    """The status of each run, with whether it is only what was last recorded; and why some are, in words."""
    clusters: dict[str, set[str]] = {}
    for history in histories:
        clusters.setdefault(history.cluster, set()).update([history.job] if history.job else [])
    answers = {cluster: _ask(cluster, sorted(jobs)) for cluster, jobs in clusters.items()}
    found: list[tuple[RunStatus, bool]] = []
    errors, alone = [], 0
    for history in histories:
        rows = answers[history.cluster]
        if history.job is None and not history.unread:  # there is nothing to ask
            rows = {}
        elif history.unread:  # there may be jobs of which nothing can be read
            what = f"{shown_path(history.run.path)}/{history.unread}"
            rows = SlurmError(f"{what}. So it is not known which jobs there are. Make it readable first.")
        as_recorded = not history.state.over and (rows is None or isinstance(rows, SlurmError))
        found.append((status_by(history, rows), as_recorded))
        if as_recorded and isinstance(rows, SlurmError):
            errors.append(str(rows))
        if as_recorded and rows is None:
            alone += bool(history.submitted)
            errors += [] if history.submitted else [f"{shown_path(history.run.path)}: {NO_CLUSTER}."]
    complaints = list(dict.fromkeys(errors))
    if alone:
        complaints.append(f"there is no squeue here that knows the cluster of {counted(alone, 'run')}.")
    return found, complaints


def _ask(cluster: str, jobs: Sequence[str]) -> Rows | SlurmError | None:
    """As queue.ask_squeue() does for one run."""
    if not jobs or is_gone(cluster):
        return {}
    with commands_of(cluster):
        if not is_here(cluster):
            return None
        try:
            if not any("_" in job for job in jobs):
                return commands.job_states(jobs, TIMEOUT_S)
            arrays = dict.fromkeys(job.partition("_")[0] for job in jobs)  # a thousand elements are one word
            return commands.element_states(list(arrays), TIMEOUT_S)
        except SlurmError as error:
            return error
