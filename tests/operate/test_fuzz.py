"""Run folders in which anything may stand, and Slurm commands that answer anything: a verb ends, says one line, prints
nothing that moves a cursor, deletes nothing, and cancels nothing but jobs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from clusterdp import cli, config
from clusterdp.cli import verbs
from clusterdp.operate.status.follow import Pace
from clusterdp.operate.status.watch import watch
from clusterdp.slurm import commands
from clusterdp.submission.send import answers, lock
from tests.checkpoint.test_manifest import manifest, write
from tests.operate.builder import preempted_once
from tests.operate.damage import spoil_answer, spoil_folder

VERBS = ["status", "status --json", "why", "why --json", "watch", "logs", "logs --all", "logs --attempt 1", "cancel",
         "checkpoint ls", "checkpoint ls --json", "status of 7", "status of the latest"] * 2  # fmt: skip
VERBS += ["list", "list --json", "list --state running,done", "note", "rm --dry-run"] * 2
VERBS += ["resume", "resume --dry-run", "resume --from 120"]  # each takes as long as ten of the others
# \r is what progress bars are made of: logs let it pass.
CONTROL = re.compile(r"[^\n\t\r\x20-\x7e\xa0-\U0010ffff]")
HANGS_S = 60  # on a machine that is busy with other tests, too


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run that goes on, and one that has crashed."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("running", "crashed"):
        builder = preempted_once(folder / name)
        builder.run.config.write_text(config.dump(config.from_mapping({"command": ["true"], "name": "digits"})))
        builder.run.script.write_text("#!/bin/bash\n")
        attempts = builder.run.attempts()
        for i, attempt in enumerate(attempts, start=1):
            for rank in (0, 1):
                attempt.rank_log(rank).write_text(f"\x1b[32mhello\x1b[0m of {rank}\n 10 %\r 20 %\r 30 %\n")
            for place in (builder.run.claims, builder.run.submits):
                place.mkdir(exist_ok=True)
            (builder.run.claims / f"{i:06d}").write_text(f"{attempt.name} token\n")
        (builder.run.submits / "000001").write_text('{"host": "h", "pid": 1, "since": 1.5, "released": 2.5}\n')
        builder.batch_log("srun: error: n1: tasks 1: Killed\n")
        builder.run.code.mkdir()
        write(builder.run.checkpoints, manifest(120, "0123456789ab-0001", 1))
        if name == "crashed":
            log = attempts[-1].rank_log(1)
            log.write_text('Traceback (most recent call last):\n  File "x"\nValueError: x\n')
            attempts[-1].cause.write_text("crash\n")
            builder.event("failed", "7.1", "batch", cause="crash", exit=1)
    return {path.name: path for path in folder.iterdir()}


class Slurm:
    """Instead of subprocess.run. `spoiled`: the command whose answer is damaged; all jobs asked for are there."""

    def __init__(self, dice: Random, spoiled: str, state: str):
        self.dice, self.spoiled, self.state = dice, spoiled, state
        self.told: list[list[str]] = []

    def __call__(self, argv: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        self.told.append(argv)
        out, err, code = self._answer(argv), b"", 0
        if argv[0] == self.spoiled:
            out, err = spoil_answer(out, self.dice), spoil_answer(b"", self.dice)
            code = self.dice.choice([0, 0, 1, 255, -9])
        decoded = [part.decode(how["encoding"], how["errors"]) for part in (out, err)]
        return subprocess.CompletedProcess(argv, code, *decoded)

    def _answer(self, argv: list[str]) -> bytes:
        if argv[0] == "sbatch":
            return b"8\n"
        if argv[0] == "scontrol":
            return b"JobId=7 JobState=PENDING StartTime=2026-01-31T10:41:09 Partition=gpu ReqTRES=cpu=4,mem=1G,node=4\n"
        if argv[0] == "sinfo":
            return b"idle|2|8|16000|gpu:8(S:0-1)|(null)|1:00:00|1-infinite\nmixed|4|8|16000|gpu:8|a|1:00:00|1-4\n"
        jobs = [job for word in argv if word.startswith("--jobs=") for job in word[7:].split(",")]
        return "".join(f"{job}|{self.state}|BeginTime|n[1-2]\n" for job in jobs).encode("utf-8", "surrogateescape")


class Odd:
    """One case: a seed decides what is damaged and which verb looks at it."""

    def __init__(self, runs: dict[str, Path], place: Path, monkeypatch: pytest.MonkeyPatch):
        self.runs, self.place, self.monkeypatch = runs, place, monkeypatch
        # In a case nobody waits: a busy lock, a lost answer, and a run that goes on are looked at a few times.
        monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(answers, "PAUSES_S", (0,))
        monkeypatch.setattr(verbs, "follow", lambda run: watch(run, pace=impatient()))
        (place / "bin").mkdir(exist_ok=True)
        for name in ("squeue", "sbatch"):
            (place / "bin" / name).touch(0o755)
        monkeypatch.setenv("PATH", str(place / "bin"))

    def look(self, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
        dice = Random(seed)
        run = self.place / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.runs[dice.choice(sorted(self.runs))], run)
        spoiled = dice.choice(["", "", "squeue", "scancel", "sbatch", "scontrol", "sinfo"])
        slurm = Slurm(dice, spoiled, dice.choice(["RUNNING", "PENDING", "COMPLETED", "COMPLETING"]))
        said = [f"{spoiled} answers oddly"] if spoiled else []
        for _ in range(1 if spoiled else dice.choice([1, 1, 2])):
            said.append(spoil_folder(run, dice))
        before = names(run)
        self.monkeypatch.setattr(commands.subprocess, "run", slurm)
        verb = dice.choice(VERBS)
        case = f"seed {seed}: {verb}: {'; '.join(said)}"
        with no_hang(case):
            code = self.type(verb, run)
        out, err = capsys.readouterr()
        assert code in range(256), f"{case}: {code}"
        most = 2 if verb.startswith("list") else 1  # what could not be read, and what Slurm did not say
        lines = err.splitlines()
        assert len(lines) <= most and len(err) < 2000 and all(line.startswith("clusterdp: ") for line in lines), (
            f"{case}: {err!r}"
        )
        odd = CONTROL.search(out + err) or ("\r" in err + ("" if verb.startswith("logs") else out))
        assert not odd, f"{case}: {odd}\n{out!r}\n{err!r}"
        lost = {name for name in before - names(run) if name != "cancelled" or not verb.startswith("resume")}
        assert not lost, f"{case}: {lost} deleted"
        wrong = [argv for argv in slurm.told if argv[0] == "scancel" and not re.fullmatch(r"[0-9]+(_[0-9]+)?", argv[1])]
        assert not wrong, f"{case}: {wrong}"

    def type(self, verb: str, run: Path) -> int:
        if " of " in verb:
            return cli.main(["status", *(["7"] if verb.endswith("7") else [])])
        if verb.startswith("list"):
            return cli.main(verb.split())
        words = verb.split()
        at = 2 if words[0] == "checkpoint" else 1
        try:
            return cli.main([*words[:at], str(run), *words[at:]])
        except SystemExit as exit_:
            return int(exit_.code or 0)


def impatient() -> Pace:
    ticks = iter(range(0, 400, 100))
    now = [0.0]

    def sleep(seconds: float) -> None:
        if (tick := next(ticks, None)) is None:
            raise KeyboardInterrupt
        now[0] = float(tick)

    return Pace(clock=lambda: now[0], sleep=sleep)


def names(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


@contextmanager
def no_hang(case: str) -> Iterator[None]:
    def hangs(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{case}: hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def odd(runs: dict[str, Path], elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Odd:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(elsewhere / "config"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    state = elsewhere.parent / "state/clusterdp"
    state.mkdir(parents=True)
    (state / "runs").write_text(f'{{"time": 1, "run": "{elsewhere / "run"}", "dir": "{elsewhere}"}}\n')
    return Odd(runs, elsewhere, monkeypatch)


def test_verbs_survive_random_damage_to_run_folders_and_slurm_answers(
    odd: Odd, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(200):
        odd.look(seed, capsys)


@pytest.mark.slow
def test_verbs_survive_ten_thousand_random_damages_to_run_folders_and_slurm_answers(
    odd: Odd, capsys: pytest.CaptureFixture[str]
) -> None:
    first = int(os.environ.get("FUZZ_FROM", "0"))
    for seed in range(first, first + 10_000):
        odd.look(seed, capsys)
