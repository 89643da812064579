"""Slurm's reasons for a pending job, in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterdp.operate.queue.pending_reasons import LIMITS, REASONS, explain, reason_text

# Of Slurm 26.05's src/common/job_state_reason.c. Those of a job that has ended need no words here.
SLURMS = (Path(__file__).parent / "job_state_reasons.txt").read_text().split()
OF_THE_ENDED = {"InactiveLimit", "NonZeroExitCode", "OutOfMemory", "RaisedSignal", "SystemFailure", "TimeLimit"}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "higher priority"),
        ("ReqNodeNotAvail, UnavailableNodes:n[2-3]", "down, drained or reserved: n[2-3]"),
        ("ReqNodeNotAvail, Reserved for maintenance", "reserved for maintenance"),
        ("AssocGrpCpuLimit", "limit of your account on CPUs"),
        ("AssocGrpGRES", "limit of your account on GPUs"),
        ("AssocGrpCPUMinutesLimit", "its minutes of CPUs are spent"),
        ("AssocGrpCPURunMinutesLimit", "time left"),
        ("QOSMaxNodePerUserLimit", "limit of its QOS on a user's nodes"),
        ("QOSMaxGRESPerUser", "a user's GPUs"),
        ("QOSMaxNodePerJobLimit", "so it never starts; cancel it"),
        ("MaxJobsPerAccount", "an account's jobs"),
        ("DependencyNeverSatisfied", "cancel it"),
        ("JobHeldUser", "`scontrol release JOB` lets it go"),
        ("launch failure limit exceeded requeued held", "`clusterdp resume` go on in a new job"),
        ("launch_failed_requeued_held", "Slurm holds it"),  # as scontrol writes it
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "kept for"),
    ],
)
def test_reason_text_explains_each_kind_of_pending_reason(reason: str, words: str) -> None:
    assert reason_text(reason).startswith(f"{reason}: ")
    assert words in reason_text(reason)


def test_every_pending_reason_of_slurm_has_an_explanation() -> None:
    assert [reason for reason in SLURMS if explain(reason) is None] == sorted(OF_THE_ENDED)
    named = {reason for reason in REASONS if re.fullmatch("[A-Za-z]+", reason)}
    assert named <= set(SLURMS), "a name that Slurm does not have"
    assert len(named) >= 25


def test_explanation_of_each_limit_names_its_resource() -> None:
    patterns = [pattern for pattern, *_ in LIMITS]
    limited = [reason for reason in SLURMS if reason not in REASONS and any(re.fullmatch(p, reason) for p in patterns)]
    assert len(limited) > 100
    assert all("some resource" not in reason_text(each) for each in limited if "Unknown" not in each)


def test_unknown_pending_reason_is_printed_unchanged() -> None:
    assert reason_text("SomethingNew") == "SomethingNew"
    assert all(reason.words for reason in REASONS.values())
