"""What a long history must not cost: time at each turn and each call, and what a killed daemon has to read again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.fakeslurm.commands.show.columns import Cell, PrintField, render
from clusterdp.fakeslurm.commands.show.sacct import aligned, fit
from clusterdp.fakeslurm.core.job_desc import Gpus, JobDesc
from clusterdp.fakeslurm.core.model import Array, JobRecord, JobTable, Model, Share, Step
from clusterdp.fakeslurm.core.shape import Shape, User
from clusterdp.fakeslurm.core.state import JobState
from clusterdp.fakeslurm.slurmctld import journal, scheduler, timers
from clusterdp.fakeslurm.slurmctld.controller import Controller
from clusterdp.fakeslurm.slurmdbd.accounting import Accounting


def job(number: int, state: JobState = JobState.PENDING, end: float | None = None) -> JobRecord:
    return JobRecord(number, JobDesc("j", "main"), 1, 0.0, state=state, end=end)


def test_job_table_separates_ended_jobs_from_live_and_requeued_ones() -> None:
    jobs = JobTable()
    jobs[1], jobs[2] = job(1), job(2, JobState.COMPLETED, end=5)
    assert list(jobs.live) == [1]
    jobs[1].state, jobs[1].end = JobState.FAILED, 7
    jobs.note(jobs[1])
    assert not jobs.live
    jobs[2].state, jobs[2].end = JobState.PENDING, None
    jobs.note(jobs[2])
    assert list(jobs.live) == [2]
    assert [each.id for each in jobs.over_before(100)] == [1]


def test_job_table_forgets_jobs_by_end_time_and_finds_arrays_by_id() -> None:
    jobs = JobTable()
    for number, end in ((1, 30.0), (2, 10.0), (3, 20.0)):
        jobs[number] = replace(job(number, JobState.COMPLETED, end), array=Array(1, [number], 3, 0, 2, 1, split=True))
    assert [each.id for each in jobs.named(1)] == [1, 2, 3]
    assert [each.id for each in jobs.named(2)] == [2]
    for each in jobs.over_before(25):
        del jobs[each.id]
    assert list(jobs) == [each.id for each in jobs.members(1)] == [1]


class Quiet:
    def job_changed(self) -> None:
        pass


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    shape = Shape.simple(2, 4, 0)
    model = Model.of(shape, 0)
    controller = Controller(shape, tmp_path, model, Accounting(), journal.Journal(tmp_path / "journal"), User.me())
    controller.runner = Quiet()  # type: ignore[assignment]
    yield controller
    controller.records.close()


def test_scheduler_and_timers_never_touch_ended_jobs(controller: Controller) -> None:
    """Else an idle cluster with a long history would keep a core busy."""
    model = controller.model
    model.jobs[1] = job(1, JobState.COMPLETED, end=controller.clock())
    dict.__setitem__(model.jobs, 1, None)  # whoever looks at it stumbles
    timers.check_limits(controller)
    timers.forget(controller)
    assert scheduler.schedule(model, controller.clock()) == []
    assert list(model.holding()) == list(model.live_jobs()) == []


def test_journal_restores_jobs_nodes_and_accounting_with_omitted_default_values(controller: Controller) -> None:
    desc = JobDesc("n", "main", gpus=Gpus(per_job=2), requeue=False, exclude=["n1"], shown={"wckey": "x"})
    step = Step("batch", "batch", ["n1"], [1], {"n1": 1}, {"n1": [0]}, JobState.FAILED, status=256, end=3.0)
    shares = [Share("n1", 1, 1, [0], [3])]
    full = JobRecord(7, desc, 5, 1.5, Array(7, [2], 3, 0, 2, 1, split=True), JobState.FAILED, past=shares, steps=[step])
    full.outcome, full.accounted, full.start, full.end = JobState.FAILED, False, 2.0, 3.0
    controller.model.jobs[7], controller.model.jobs[8] = full, job(8)
    node = controller.model.nodes[next(iter(controller.model.nodes))]
    node.down = True
    controller.changed(full, "FAILED")
    controller.changed(controller.model.jobs[8])
    controller.records.node(node.name)
    node.down = False
    controller.records.node(node.name)
    controller.records.flush()
    model, accounting = Model.of(controller.shape, 0), Accounting()
    journal.restore(controller.folder / "journal", model, accounting)
    assert model.jobs == controller.model.jobs
    assert model.nodes[node.name].down is False
    controller.records.accounting.settle(controller.clock() + 60)
    assert accounting.rows == controller.records.accounting.rows
    assert [row.job for row in accounting.listed(0, [7])] == [7]


def test_journal_ignores_a_truncated_line_and_keeps_the_next_one(controller: Controller) -> None:
    path = controller.folder / "torn"
    path.write_text('["next_id", 0, 7]\n["next_id", 0')
    book = journal.Journal(path)
    book.write("ahead", 0, 5.0)
    book.close()
    model = Model.of(controller.shape, 0)
    journal.restore(path, model, Accounting())
    assert (model.next_id, model.ahead_s) == (7, 5.0)


def test_mostly_outdated_journal_is_compacted_when_read(controller: Controller) -> None:
    path = controller.folder / "journal"
    for i in range(500):
        controller.model.ahead_s = float(i)
        controller.records.ahead()
    controller.records.flush()
    model = Model.of(controller.shape, 0)
    journal.restore(path, model, Accounting())
    assert model.ahead_s == 499
    assert len(path.read_text().splitlines()) < 20


def test_squeue_and_sacct_table_cells_are_cut_and_padded_to_their_width() -> None:
    cells = [Cell("a", 5, right=True, after="%|"), Cell("b", 3), Cell("c"), Cell("?", after="!")]
    fields = {key: PrintField(key, lambda row, key=key: row[key]) for key in "ab"} | {
        "c": PrintField("c", lambda row: "p*", "*")
    }
    rows = [{"a": "abcdefg", "b": "x"}, {"a": "%s", "b": "long"}]
    assert render(">%", cells, fields, rows, False, lambda key: "%" + key) == [">%abcde%|x  p*%?!", ">%   %s%|lonp*%?!"]
    sizes, texts = [4, -3], [("abc", "de"), ("abcdef", "x"), ("%d", "longer")]
    assert list(aligned(texts, sizes)) == [
        "".join(fit(text, size) + " " for text, size in zip(row, sizes, strict=True)) for row in texts
    ]
