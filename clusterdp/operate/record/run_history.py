"""RunHistory: the history of a run, read from the files in its folder. Slurm is not asked.

Every file may be missing, torn or shown late by NFS. A value that is unknown is None."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterdp import procfs
from clusterdp.errors import RunError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.record.attempt_history import AttemptHistory, read_attempt
from clusterdp.operate.record.ending import with_reasons
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.record.slurmstepd_notice import with_notices
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import Record, modified, read_ledger, time_of, words
from clusterdp.rundir.names import LOCAL, names_in, place_of


class RunHistory(NamedTuple):
    """A run as its records show it. Because `state` follows from the records alone, WAITING and RUNNING may be out of
    date."""

    run: RunDir
    name: str
    entry: str  # empty if the job starts a program (command: or script:)
    state: RunState
    why: str  # details of the state, in words; may be empty
    jobs: tuple[str, ...]  # all jobs of the run; the current job is the last
    cluster: str  # the value of SLURM_CONF at the submit; empty if not set
    folder: str  # the run's folder at the last submit; empty if not recorded
    submitted: float | None
    attempts: tuple[AttemptHistory, ...]  # in the order in which they began
    events: tuple[Record, ...]
    cancelled: bool  # `clusterdp cancel` has marked the run
    asked_to_stop: bool  # `clusterdp stop` has marked the run
    unread: str = ""  # name of a record that cannot be read, and the reason
    is_local: bool = False  # the last attempt ran without Slurm: under launch(), torchrun or python, with a run folder

    @property
    def job(self) -> str | None:
        """The current job: the last job that was submitted, or that began to run."""
        return self.jobs[-1] if self.jobs else None

    @property
    def last(self) -> AttemptHistory | None:
        """The newest attempt that left a record."""
        return newest(self.attempts)

    @property
    def ran(self) -> tuple[AttemptHistory, ...]:
        """The attempts that started to work. Left out are those that found the run finished, or could not write to the
        run folder."""
        return tuple(a for a in self.attempts if a.ran) or self.attempts

    @property
    def untold(self) -> bool:
        """Whether `clusterdp cancel` has marked the run, but no record shows that scancel succeeded."""
        return self.cancelled and _untold(self.events, self.job)

    @property
    def stopped_by_user(self) -> bool:
        """Whether `clusterdp stop` or job.stop() has ended the run, also in the pause after a failed attempt."""
        return self.asked_to_stop or (self.last is not None and self.last.stopped_by_user)

    @property
    def closed(self) -> bool:
        """Whether the run is over, and the batch script has written its last record, too."""
        return self.state.over and (self.last is None or self.last.closed or self.is_local)

    @property
    def step(self) -> int | None:
        """The last step that the newest attempt with any training reached."""
        return next((a.last_step for a in reversed(self.attempts) if a.last_step is not None), None)

    @property
    def total(self) -> int | None:
        return next((a.total for a in reversed(self.attempts) if a.total is not None), None)

    @property
    def jobs_there(self) -> tuple[str, ...]:
        """The jobs on the run's present cluster. A job of the same number on another cluster is another job."""
        home = {str(e["job"]): e["cluster"] for e in self.events if "job" in e and "cluster" in e}
        return tuple(job for job in self.jobs if home.get(job, self.cluster) == self.cluster)

    @property
    def phase(self) -> str:
        return next((a.phase for a in reversed(self.attempts) if a.last_step is not None), "")

    @property
    def metrics(self) -> dict[str, Any]:
        return next((a.metrics for a in reversed(self.attempts) if a.metrics), {})

    @property
    def measured_at(self) -> float | None:
        return next((a.measured_at for a in reversed(self.attempts) if a.measured_at), None)

    @property
    def saved(self) -> tuple[int, float | None] | None:
        """The step and the time of the newest checkpoint in the ledger."""
        return next(((a.saved, a.saved_at) for a in reversed(self.attempts) if a.saved is not None), None)

    @property
    def lost(self) -> int:
        return sum(a.lost or 0 for a in self.attempts)

    @property
    def may_come_again(self) -> bool:
        """Whether Slurm may requeue a finished job: Slurm 24.05 to 25.11 requeue such a job, even with exit code 0, if
        the job was once in a grace time."""
        ours = [a for a in self.attempts if a.job == self.job]
        starts = {_place(a.name)[1] for a in ours}
        return self.state is RunState.DONE and (len(starts) > 1 or any(a.signalled for a in ours))


def read_history(run: RunDir, all_metrics: bool = True) -> RunHistory:
    """Reads the history of a run. all_metrics: False for a table of many runs, to be fast: only the newest attempts get
    their metrics, and lost steps are unknown."""
    events, unread = read_ledger(run)
    submitted = [event for event in events if event.get("event") in ("submitted", "submit-in-doubt")]
    cancelled, asked_to_stop = run.cancelled.exists(), run.stop.exists()
    attempts = _read_attempts(run, events, cancelled, all_metrics)
    attempts = _count_losses(attempts, events) if all_metrics else attempts
    jobs = _jobs(attempts, events)
    job = jobs[-1] if jobs else None
    in_queue = cancelled and _untold(events, job)
    last = newest(attempts)
    is_local = last is not None and last.job == LOCAL and not any(time_of(e) > (last.started or 0.0) for e in submitted)
    state, why = state_of(attempts, LOCAL if is_local else job, cancelled, asked_to_stop, in_queue)
    if is_local and last is not None:
        state, why = local_state(last, state, why)
    return RunHistory(
        run=run,
        name=_said(submitted, "name") or run.path.absolute().name,
        entry=_said(submitted, "entry"),
        state=state,
        why=why or ("" if state.over else unread),
        jobs=jobs,
        cluster=str(next((event["cluster"] for event in reversed(submitted) if "cluster" in event), "")),
        folder=_said(submitted, "folder"),
        submitted=time_of(submitted[-1]) if submitted else None,
        attempts=attempts,
        events=tuple(events),
        cancelled=cancelled,
        asked_to_stop=asked_to_stop,
        unread=unread,
        is_local=is_local,
    )


def check_read(history: RunHistory) -> None:
    """Raises RunError if a record cannot be read. A command calls this function before it reports that a run has no
    records."""
    if history.unread:
        raise RunError(f"{shown_path(history.run.path)}: {history.unread}. Make it readable first.")


def newest(attempts: Sequence[AttemptHistory]) -> AttemptHistory | None:
    """Returns the last attempt that left a record: on a full disk, an attempt leaves only an empty folder."""
    return next((a for a in reversed(attempts) if a.heard), attempts[-1] if attempts else None)


def state_of(
    attempts: Sequence[AttemptHistory],
    job: str | None,
    cancelled: bool,
    asked_to_stop: bool = False,
    in_queue: bool = False,
) -> tuple[RunState, str]:
    """Returns the state of a run, and details in words. `job` is the current job. `cancelled` and `asked_to_stop` mean
    that no attempt may start any more. With `in_queue`, the job may still wait in the queue, because no record shows
    that scancel succeeded."""
    ended = RunState.CANCELLED if cancelled else RunState.STOPPED if asked_to_stop else None
    last = newest([a for a in attempts if a.cause != "overtaken"] or attempts)
    if last is None or (job is not None and last.job != job):
        if in_queue:
            return RunState.WAITING, ""
        return (ended, "before it began") if ended else (RunState.WAITING, "")
    if not last.cause:
        return RunState.RUNNING, ""
    if last.cause == "cancelled" and not last.closed and not (cancelled and last.outcome):
        return RunState.WAITING, "the last attempt was cancelled"  # only Slurm knows whether the job is over
    if last.cause == "overtaken":
        return RunState.STOPPED, f"superseded {last.why}"
    if last.cause in ("done", "cancelled", "gave-up", "stopped"):
        return RunState(last.cause), last.why
    if ended:
        return ended, f"the last attempt had ended before: {last.cause}"
    if last.failed:
        return RunState.FAILED, last.why
    return RunState.WAITING, f"the last attempt ended: {last.cause}"


def local_state(last: AttemptHistory, state: RunState, why: str) -> tuple[RunState, str]:
    """Returns the state of a run whose last attempt ran without Slurm: nothing starts it again, and its process on this
    host shows whether it lives. `state` and `why` are those that its records show."""
    if state is RunState.WAITING:  # after a signal, for example
        return RunState.STOPPED, "start it again to continue"
    if state is not RunState.RUNNING:
        return state, why
    if last.nodes != os.uname().nodename:
        return state, f"as last recorded, on {last.nodes}"
    if last.pid is not None and procfs.is_alive(last.pid, last.started):
        return state, why
    return RunState.VANISHED, "no ending on record, and its process is gone: it has failed, or was killed"


def _read_attempts(
    run: RunDir, events: Sequence[Record], cancelled: bool, all_metrics: bool
) -> tuple[AttemptHistory, ...]:
    by_name: dict[str, list[Record]] = {name: [] for name in names_in(run.path / "attempts") if place_of(name)}
    for event in events:
        name = str(event.get("of") or event.get("attempt") or "")  # `of`: the event is about that other attempt
        if place_of(name):  # a name such as `submit-123` is no attempt's
            by_name.setdefault(name, []).append(event)
    own = {name: [event for event in told if event.get("attempt") == name] for name, told in by_name.items()}
    names = by_beginning(run, own)
    attempts: list[AttemptHistory] = []
    metrics = True
    for number, name in reversed(list(enumerate(names, start=1))):
        attempt = read_attempt(run, run.attempt(name), number, by_name[name], metrics)
        attempts.insert(0, attempt)
        if not all_metrics and attempt.last_step is not None and attempt.total is not None and attempt.metrics:
            metrics = False
    return with_reasons(with_owners(run, with_notices(run, attempts, cancelled)))


def _count_losses(attempts: Sequence[AttemptHistory], events: Sequence[Record]) -> tuple[AttemptHistory, ...]:
    """Returns the attempts with their lost steps: an attempt's steps after the step from which the next attempt
    with steps continued."""
    # `resume --from STEP` goes back because the user wants to: no step counts as lost.
    went_back = {str(e.get("job")) for e in events if e.get("event") == "submitted" and e.get("from_step") is not None}
    counted = list(attempts)
    for i, before in enumerate(attempts):
        later = attempts[i + 1 :]
        after = next((each for each in later if each.restored is not None or each.first_step is not None), None)
        if before.last_step is None or after is None:
            continue
        if after.job != before.job and after.job in went_back:
            counted[i] = before._replace(lost=0)
        elif after.restored is not None:
            counted[i] = before._replace(lost=max(0, before.last_step - after.restored))
        else:  # the next attempt trained from step 0, without a checkpoint
            counted[i] = before._replace(lost=before.last_step)
    return tuple(counted)


def _untold(events: Sequence[Record], job: str | None) -> bool:
    told = {event.get("event") for event in events if event.get("job") == job and event.get("cause") is None}
    return "cancelled" in told and "cancel-told" not in told


def _jobs(attempts: Sequence[AttemptHistory], events: Sequence[Record]) -> tuple[str, ...]:
    """Returns the jobs of a run, the current job last. A job without a record of its submit gets its place when it
    begins. A job that waits for the end of another job (`linked`) counts as older."""
    waiting = [str(e["job"]) for e in events if e.get("job") and e.get("event") == "linked"]
    named = [str(e["job"]) for e in events if e.get("job") and e.get("event") in ("submitted", "started")]
    unnamed = [a.job for a in attempts if a.job not in named and a.job != LOCAL]
    newest_first = dict.fromkeys(reversed([*waiting, *unnamed, *named]))
    return tuple(reversed(newest_first))


def _said(submitted: Sequence[Record], key: str) -> str:
    """Returns the newest value of `key` among the submits, because a resubmission by the batch script records only the
    new job."""
    return str(next((event[key] for event in reversed(submitted) if event.get(key)), ""))


def with_owners(run: RunDir, attempts: Sequence[AttemptHistory]) -> tuple[AttemptHistory, ...]:
    """Returns the attempts, with the cause "overtaken" for each attempt whose run folder another attempt has
    claimed."""
    claims: list[str] | None = None
    marked = list(attempts)
    for i, attempt in enumerate(attempts):
        lost = attempt.cause == "overtaken" or (attempt.cause == "stopped" and attempt.why == "claim")
        if not lost and (attempt.cause or len(attempts) == 1):
            continue
        claims = _in_order(run) if claims is None else claims
        owner = _after(attempt, attempts, claims)
        if owner is not None or lost:
            why = f"by attempt {owner.number}" if owner else "by another attempt"
            marked[i] = attempt._replace(cause="overtaken", why=why)
    return tuple(marked)


def _after(attempt: AttemptHistory, attempts: Sequence[AttemptHistory], claims: list[str]) -> AttemptHistory | None:
    """Returns the attempt that claimed the run folder next after the last claim of `attempt`. The claims of earlier
    attempts of the same job do not count: see train/ranks/claim.py."""
    if attempt.name not in claims:
        return None
    by_name = {each.name: each for each in attempts}
    for name in claims[len(claims) - claims[::-1].index(attempt.name) :]:
        after = by_name.get(name)
        if after is None or after.job != attempt.job or _place(name) > _place(attempt.name):
            return after
    return None


def _in_order(run: RunDir) -> list[str]:
    return ["".join(words(run.claims / name)[:1]) for name in sorted(names_in(run.claims)) if name.isdecimal()]


def by_beginning(run: RunDir, events: Mapping[str, Sequence[Record]]) -> list[str]:
    """Returns the names of attempts in the order in which they began. `events` has each attempt's own events by its
    name.

    Attempts of one job are ordered by their names, not by the clocks of hosts. Jobs are ordered by the time of
    their first event, not by id, because Slurm wraps ids. An attempt without events gets the time of another attempt of
    its job. A job without any event gets the time of its folders, which is only the last resort because copying a run
    changes that time.
    """
    jobs: dict[str, list[tuple[tuple[str, int, int], str]]] = {}
    for name in events:
        place = _place(name)
        jobs.setdefault(place[0], []).append((place, name))
    keys: dict[str, tuple[float, tuple[str, int, int]]] = {}
    for lives in jobs.values():
        lives.sort()
        times = [time_of(events[name][0]) if events[name] else None for _, name in lives]
        if not any(times):
            times = [modified(run.attempt(name).path) for _, name in lives]
        latest = next(filter(None, times), 0.0)
        for (place, name), when in zip(lives, times, strict=True):
            latest = max(latest, when or 0.0)
            keys[name] = (latest, place)
    return sorted(keys, key=lambda name: keys[name])


def _place(name: str) -> tuple[str, int, int]:
    place = place_of(name)
    assert place is not None, name
    return place
