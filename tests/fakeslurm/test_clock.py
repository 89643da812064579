"""The machine's clock is set while jobs run: what a user would lose is a job that ends days before its time."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm.core.job_desc import JobDesc
from clusterdp.fakeslurm.core.model import JobRecord, Model
from clusterdp.fakeslurm.core.shape import Shape, User
from clusterdp.fakeslurm.core.state import JobState
from clusterdp.fakeslurm.slurmctld import journal, timers
from clusterdp.fakeslurm.slurmctld.controller import Controller
from clusterdp.fakeslurm.slurmdbd.accounting import Accounting

DAY_S = 86400


class Silent:
    def told(self) -> None:
        pass


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    shape = Shape.simple(1, 4, 0)
    book = journal.Journal(tmp_path / "journal")
    controller = Controller(shape, tmp_path, Model.of(shape, 0), Accounting(), book, User.me())
    controller.runner = Silent()  # type: ignore[assignment]
    yield controller
    controller.records.close()


@pytest.fixture
def set_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if somebody had set the machine's clock, at the first look of the test."""
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + DAY_S)


def test_job_keeps_its_time_limit_when_the_machine_clock_jumps_forward(
    controller: Controller, request: pytest.FixtureRequest
) -> None:
    before = controller.clock()
    job = JobRecord(1, JobDesc("j", "main"), 1, before, state=JobState.RUNNING, start=before, minutes=60)
    controller.model.jobs[1] = job
    request.getfixturevalue("set_forward")
    timers.check_limits(controller)
    assert job.running
    assert controller.clock() - before < DAY_S / 2


def test_idle_cluster_adopts_a_changed_machine_clock_and_journals_it(
    controller: Controller, request: pytest.FixtureRequest
) -> None:
    before = controller.clock()
    controller.set_clock()
    assert not controller.clock.wrong
    request.getfixturevalue("set_forward")
    assert controller.clock.wrong
    controller.set_clock()
    assert controller.clock() - before >= DAY_S
    controller.records.flush()
    model = Model.of(controller.shape, 0)
    journal.restore(controller.folder / "journal", model, Accounting())
    assert model.epoch == controller.model.epoch
