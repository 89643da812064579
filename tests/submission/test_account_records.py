"""What the batch script records of its allocation, for the account of the run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.submission.conftest import RunScript, Stubs

DONE = {"command": ["true"]}


def events(tmp_path: Path) -> dict[str, dict[str, Any]]:
    lines = (tmp_path / "run/events/7.0-batch.jsonl").read_text().splitlines()
    return {event["event"]: event for event in map(json.loads, lines)}


def test_batch_script_records_allocated_cpus_gpus_wake_time_and_exit_time(
    run_script: RunScript, tmp_path: Path
) -> None:
    got = {"SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NUM_NODES": "3"}
    before = time.time()
    run_script({"command": ["bash", "-c", "exit 3"], "restart": {"max_crashes": 0}}, **got)
    found = events(tmp_path)
    started, exited = found["started"], found["exited"]
    assert (started["cpus"], started["gpus"]) == ("8(x2),4", 12)
    assert before <= started["awake"] <= started["time"] <= exited["time"] <= found["failed"]["time"]
    assert exited["exit"] == 3


def test_batch_script_records_its_queue_time_from_squeue(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    (stubs.folder / "squeue").write_text(
        '#!/bin/bash\n[ "$SLURM_TIME_FORMAT" = %s ] && echo "1:00:00 1700000000 1700000060"\n'
    )
    run_script(DONE)
    queued = events(tmp_path)["queued"]
    assert (queued["since"], queued["until"]) == (1700000000, 1700000060)


@pytest.mark.parametrize(
    "answer", ["echo", "exit 1", "echo 1:00:00", "echo 1:00 N/A N/A", "echo 1:00 17", "echo a b c"]
)
def test_unusable_squeue_answer_leaves_no_queued_event(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, answer: str
) -> None:
    (stubs.folder / "squeue").write_text(f"#!/bin/bash\n{answer}\n")
    assert run_script(DONE).returncode == 0
    assert list(events(tmp_path)) == ["started", "exited", "finished"]
