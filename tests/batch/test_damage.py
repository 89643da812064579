"""Damaged run folders: whatever stands in them, the program decides, and never fails."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest

from clusterdp.batch.decide.attempts import read_attempts
from clusterdp.batch.decide.decisions import End
from clusterdp.batch.decide.history import History, history_of
from clusterdp.batch.files.job import Job
from clusterdp.batch.files.record import Record
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.processes.slurm import Slurm
from tests.batch.values import job

NAMES = ["chain", "cause", "exit", "began", "outcome", "avoid", "saved", "mistake", "error"]
WORDS = [
    b"7",
    b"crash",
    b"done",
    b"lost",
    b"stop user 5",
    b"requeue term",
    b"-",
    b"1e9",
    b"9" * 30,
    b"\xff\xfe",
    b"a[$(id)]",
]
WORDS += [b"", b"\0\0", b"{", b"[]", b"\n\n", b"1 2026-01-01T00:00:00 0 n1", b"3 7300 0", "١٢".encode()]


class Site:
    def down_nodes(self, nodes: str) -> list[str]:
        return []


def damaged(folder: Path, seed: int) -> Job:
    """A run folder of up to eight attempts in which anything may stand, or be a folder."""
    dice = random.Random(seed)
    for restart in range(dice.randrange(1, 8)):
        attempt = folder / f"attempts/7.{restart}"
        (attempt / "logs").mkdir(parents=True)
        (attempt / "chain").write_bytes(b"7\n")
        for name in dice.sample(NAMES, dice.randrange(len(NAMES))):
            path = attempt / name
            if dice.random() < 0.1:
                path.unlink(missing_ok=True)
                path.mkdir()
            else:
                path.write_bytes(b" ".join(dice.choices(WORDS, k=dice.randrange(5))))
    (folder / "events").mkdir()
    for restart in range(dice.randrange(3)):
        (folder / f"events/7.{restart}-batch.jsonl").write_bytes(dice.choice(WORDS) + b"\n" + dice.choice(WORDS))
    (folder / "attempts/stray").touch()
    (folder / "attempts/7.x").mkdir()
    (folder / "checkpoints/step_5").mkdir(parents=True)
    (folder / "checkpoints/step_5/MANIFEST.1.json").write_bytes(dice.choice([*WORDS, b'{"attempt":"7.0"}']))
    (folder / "slurm-7.out").write_bytes(
        dice.choice([b"", b"\xff", b"*** JOB 7 ON n1 CANCELLED AT 2099-01-31T10:41:09 DUE TO PREEMPTION ***"])
    )
    return job(run=str(folder), restart=9)


@pytest.mark.parametrize("seed", range(60))
def test_attempt_history_is_read_from_a_damaged_run_folder(tmp_path: Path, seed: int) -> None:
    ours = damaged(tmp_path, seed)
    attempts = read_attempts(ours, Rules(), Record(ours), cast(Slurm, Site()))
    assert isinstance(history_of(attempts, ours.id), (History, End))
    again = read_attempts(ours, Rules(), Record(ours), cast(Slurm, Site()))
    assert not any(each.is_news and each.cause == "" for each in again)
