"""The jobs that sacct finds by --starttime, --endtime and --state, as a real Slurm 24.11 finds them."""

import pytest

from clusterdp.fakeslurm.commands.show.sacct import is_within, window
from clusterdp.fakeslurm.core.error_texts import Refusal
from clusterdp.fakeslurm.core.job_desc import JobDesc
from clusterdp.fakeslurm.core.model import JobRecord, Model, Share
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.fakeslurm.core.state import JobState
from clusterdp.fakeslurm.slurmdbd.accounting import Accounting, AccountingJob

NOW = 1_000_000.0
HOUR = 3600.0


def row(state: JobState, **times: float | None) -> AccountingJob:
    """`times`: seconds before NOW."""
    moments = {name: None if value is None else NOW - value for name, value in times.items()}
    job = JobRecord(1, JobDesc("job", "main"), 1, NOW - 60, state=state, **moments)  # type: ignore[arg-type]
    job.shares = [Share("n1", 1, 1)] if job.start != job.end else []
    noted = Accounting().note(Model.of(Shape.simple(), NOW), job, NOW)
    assert noted
    return noted[1]


ROWS = {
    "good": row(JobState.COMPLETED, eligible_time=50, start=50, end=40),
    "bad": row(JobState.FAILED, eligible_time=50, start=50, end=40),
    "stopped": row(JobState.CANCELLED, eligible_time=50, start=50, end=30),
    "never": row(JobState.CANCELLED, eligible_time=None, start=30, end=30),
    "running": row(JobState.RUNNING, eligible_time=50, start=50),
    "waiting": row(JobState.PENDING, eligible_time=50),
    "held": row(JobState.PENDING, eligible_time=None),
    "later": row(JobState.PENDING, eligible_time=-HOUR),
}


@pytest.mark.parametrize(
    ("options", "named", "expected"),
    [
        ("S=now-1hour", False, "good bad stopped running waiting"),
        ("S=now-1hour E=now", False, "good bad stopped running waiting"),
        ("S=now E=now+2hours", False, "running waiting later"),
        ("S=now-1hour s=F", False, ""),
        ("S=now-1hour s=F E=now", False, "bad"),
        ("S=now-1hour s=CA E=now", False, "stopped never"),
        ("S=now-1hour s=PD E=now", False, "good bad stopped running waiting"),
        ("S=now-1hour s=R E=now", False, "good bad stopped running"),
        ("S=now-1hour s=PD,R", False, ""),
        ("s=PD", False, "waiting"),
        ("s=R", False, "running"),
        ("s=F", False, ""),
        ("s=PD,R E=now", False, "running waiting"),
        ("", True, "good bad stopped never running waiting held later"),
        ("S=now", True, "running waiting held later"),
        ("s=F", True, "bad"),
        ("s=PD", True, "good bad stopped running waiting"),
        ("E=now-1hour", True, ""),
        ("S=now s=F", True, ""),
    ],
)
def test_sacct_finds_the_jobs_of_a_window_as_recorded(options: str, named: bool, expected: str) -> None:
    names = {"S": "starttime", "E": "endtime", "s": "state"}
    given = {names[word[0]]: word[2:] for word in options.split()}
    found = [name for name, each in ROWS.items() if is_within(each, *window(given, NOW, named), named)]
    assert found == expected.split()


@pytest.mark.parametrize("options", [{"starttime": "now+1hour"}, {"endtime": "now-2days"}])
def test_sacct_refuses_a_window_with_its_end_before_its_start(options: dict[str, str]) -> None:
    with pytest.raises(Refusal, match=r"Start time \(.*\) requested is after end time"):
        window(options, NOW, named=False)


def test_attempt_is_seen_after_the_end_of_the_one_before() -> None:
    accounting, model = Accounting(), Model.of(Shape.simple(), NOW)
    job = JobRecord(1, JobDesc("job", "main"), 1, NOW - 60, state=JobState.RUNNING, start=NOW - 50, end=NOW)
    job.restarts = 1
    accounting.note(model, job, NOW + 2, "REQUEUED")
    job.submit_time, job.state, job.start, job.end = NOW, JobState.PENDING, None, None
    accounting.note(model, job, NOW)
    assert accounting.listed(NOW + 1) == []
    assert [(each.state, each.restarts) for each in accounting.listed(NOW + 2)] == [("REQUEUED", 0), ("PENDING", 1)]
