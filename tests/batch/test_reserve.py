"""Ranks in reserve: their srun, how they become ranks, and how they end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.batch.act import reserve
from clusterdp.batch.act.reserve import Reserve, logs_of
from clusterdp.batch.files.job import Job, job_of
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.processes.children import Children
from clusterdp.submission.render.script_spec import make_spec
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
# An srun of two nodes: it logs, and lasts until the end of stdin.
SRUN = """#!/bin/bash
[ "$1" != --version ] || { echo "slurm $RELEASE"; exit; }
echo "$@" >words; env >environ
: >"${LOGS}/node-00000.log"
[ -e one ] || : >"${LOGS}/node-00001.log"
[ ! -e dies ] || echo "srun: error: n1: task 1: Killed" >&2
[ ! -e warns ] || echo "srun: a warning" >&2
touch started
[ ! -e stays ] || exec sleep 60
exec cat >said
"""
Begin = Callable[..., Reserve]


class Apart(Children):
    """Without signal handlers."""

    def __init__(self, environ: dict[bytes, bytes]) -> None:
        self.environ = environ
        self.private = []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    found = job_of(str(tmp_path), "job.sbatch", {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"})
    Path(found.here).mkdir(parents=True)
    Path(found.file("key")).touch()
    return found


@pytest.fixture
def begin(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> Begin:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def begin(*files: str, release: str = "24.11.5") -> Reserve:
        for name in files:
            (tmp_path / name).touch()
        variables = {"PATH": os.environ["PATH"], "LOGS": logs_of(job), "RELEASE": release, "MASTER_PORT": "1"}
        children = Apart({os.fsencode(name): os.fsencode(value) for name, value in variables.items()})
        found = Reserve(Rules(warm_after_s=0.0, nodes=2), children)
        found.begin()
        wait_for("its time", found.is_due, 10)
        found.start(["srun", "--ntasks=2", "bash"], children.environ, job)
        if found._step is not None:
            wait_for("its tasks", (tmp_path / "started").exists, 10)
        return found

    return begin


def test_reserve_starts_seconds_after_the_ranks() -> None:
    found = Reserve(Rules(warm_after_s=60.0), Apart({}))
    assert not found.is_due()
    found.begin()
    assert not found.is_due()
    assert 50 < found.left_s <= 60


def test_reserve_without_seconds_never_starts() -> None:
    found = Reserve(Rules(), Apart({}))
    found.begin()
    assert found.left_s == float("inf")


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 30),
        ({"restart": {"warm_after_s": 5}}, 5),
        ({"restart": {"warm_after_s": None}}, None),
        ({"restart": {"in_place": False}}, None),
        ({"launch": {"launcher": "torchrun"}}, None),
        ({"launch": {"template": __file__}}, None),
        ({"launch": {"container": {"image": "/a.sif", "runtime": "apptainer"}}}, None),
        ({"entry": None, "command": "python a.py"}, None),
    ],
)
def test_reserve_needs_an_entry_under_plain_srun(values: dict[str, object], seconds: float | None) -> None:
    loaded = config.from_mapping({"entry": "a:b", **values})
    assert make_spec(loaded, Path("/run"), Path("/"), sys.executable).warm_after_s == seconds


def test_reserve_waits_as_the_next_attempt_and_shares_all(begin: Begin, tmp_path: Path) -> None:
    found = begin()
    variables = (tmp_path / "environ").read_text().splitlines()
    assert {"CLUSTERDP_RESERVE=1", "CLUSTERDP_ATTEMPT=7.0.1"} <= set(variables)
    assert (tmp_path / "words").read_text() == "--overlap --ntasks=2 bash\n"
    found.close()


def test_taken_tasks_get_the_variables_and_the_logs_of_the_attempt(
    begin: Begin, job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found, after = begin("warns"), job.after
    assert "a warning" not in capfd.readouterr().err
    os.utime(logs_of(job), (1, 1))
    taken = found.take({b"MASTER_PORT": b"1234", b"CLUSTERDP_ATTEMPT": b"7.0.1", b"PATH": b"/bin"}, after)
    assert taken is not None
    step, errors = taken
    assert step.wait(10) == 0
    errors.close()
    variables = json.loads((tmp_path / "said").read_text())
    assert (variables["MASTER_PORT"], variables["CLUSTERDP_ATTEMPT"]) == ("1234", "7.0.1")
    assert variables["CLUSTERDP_RESUME_STEP"] is None
    assert "PATH" not in variables
    assert len(os.listdir(after.logs)) == 2
    assert time.time() - os.stat(after.logs).st_mtime < 60
    assert not os.path.exists(logs_of(job))
    assert "a warning" in capfd.readouterr().err
    assert found.children.private == []
    assert found.take({}, after) is None


@pytest.mark.parametrize("fault", ["dies", "one"])
def test_incomplete_tasks_are_not_taken(
    begin: Begin, job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: str
) -> None:
    found = begin(fault)
    assert found.take({}, job.after) is None
    assert (tmp_path / "said").read_text() == ""
    assert not os.path.exists(job.after.here)
    assert "Killed" not in capfd.readouterr().err, "the cause of a failure is read there"


def test_ended_step_is_not_taken(begin: Begin, job: Job) -> None:
    found = begin()
    assert found._step is not None
    found._step.kill()
    found._step.wait()
    assert found.take({}, job.after) is None


@pytest.mark.parametrize("mark", ["cold", "no key"])
def test_reserve_obeys_the_marks_of_the_ranks(begin: Begin, job: Job, tmp_path: Path, mark: str) -> None:
    Path(job.file("cold")).touch() if mark == "cold" else Path(job.file("key")).unlink()
    found = begin()
    assert found._step is None
    assert found.left_s == pytest.approx(10, abs=1) if mark == "no key" else not found.is_wanted


def test_mark_of_a_late_rank_keeps_the_tasks_from_being_taken(begin: Begin, job: Job) -> None:
    found = begin()
    Path(job.file("cold")).touch()
    assert found.take({}, job.after) is None


def test_second_start_of_an_attempt_leaves_the_tasks_to_the_next_one(begin: Begin, job: Job) -> None:
    found = begin()
    assert found.take({}, job) is None
    taken = found.take({}, job.after)
    assert taken is not None
    assert taken[0].wait(10) == 0
    taken[1].close()


def test_end_of_a_task_ends_the_others(begin: Begin) -> None:
    found = begin("dies")
    step = found._step
    wait_for("their end", lambda: not found.is_due() and found._step is None, 10)
    assert step is not None
    assert step.returncode == 0


def test_close_ends_the_tasks(begin: Begin, job: Job, tmp_path: Path) -> None:
    found = begin()
    step = found._step
    found.close()
    assert step is not None
    assert (step.poll(), (tmp_path / "said").read_text()) == (0, "")
    assert os.listdir(logs_of(job)), "a job in a hurry does not remove thousands of files"
    found.close()
    found.tidy()
    assert not os.path.exists(logs_of(job))


def test_close_kills_lingering_tasks(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "END_S", 0.1)
    found = begin("stays")
    step, began = found._step, time.monotonic()
    found.close()
    assert step is not None
    assert step.poll() == -15
    assert time.monotonic() - began < 10


def test_reserve_starts_from_slurm_22_05_on(begin: Begin, job: Job, tmp_path: Path) -> None:
    found = begin(release="21.08.8")
    assert found.take({}, job.after) is None
    assert not (tmp_path / "words").exists()
    found.begin()
    assert not found.is_due()
