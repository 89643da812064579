"""A training on a range of nodes: each attempt has as many as are free, and the samples of each step stay the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from clusterdp.batch.nodes.keeper import HELD
from clusterdp.rundir import read_lines
from tests.e2e.cluster import Cluster
from tests.e2e.processes import copies_of, lost, nodes_of, skip_without_keepers
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(360)
MEMORY_S, DELAY_S = 1.0, 0.25  # seconds between copies in memory; of a step

PROGRAM = """\
import json, time
import torch

def train(job, record, delay_s=0.0):
    data = torch.utils.data.TensorDataset(torch.arange(114), torch.linspace(0, 1, 114, dtype=torch.float64)[:, None])
    torch.manual_seed(1)
    model = job.wrap(torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loop = job.loop(job.loader(data, batch_size=4), {"model": model, "optimizer": optimizer}, epochs=8)
    with open(f"{record}-{job.rank}", "a", buffering=1) as rows:
        for ids, x in loop:
            loss = (model(x) - x).square().mean()
            (loss / loop.window).backward()
            if loop.window != float("inf"):
                print(json.dumps([loop.step, ids.tolist(), round(loss.item(), 9)]), file=rows)
            if loop.window_ends:
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(delay_s)
            loop.log(loss=loss)
"""
CONFIG = """\
entry: program:train
resources: {nodes: 1-2, tasks_per_node: 2, time: 10}
train: {backend: gloo, global_batch_size: 32}
restart: {warm_after_s: null}
params: {record: %s}
"""


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Callable[..., Run]]:
    (project / "program.py").write_text(PROGRAM)
    started: list[Run] = []

    def start(name: str, *overrides: str) -> Run:
        (project / "job.yaml").write_text(CONFIG % (project / name))
        started.append(submit(cluster, project, "job.yaml", f"run_dir={project}/run-{name}", *overrides))
        return started[-1]

    yield start
    for run in started:
        cluster.run("scancel", run.job)


@contextmanager
def taken(cluster: Cluster, nodes: int) -> Iterator[None]:
    """So many nodes are another job's."""
    words = ["sbatch", "--parsable", "--exclusive", f"--nodes={nodes}", "--output=/dev/null", "--wrap=sleep 600"]
    job = cluster.run(*words).strip()
    try:
        wait_for(
            f"job {job} to run", lambda: cluster.state(job)[0] == "RUNNING", 60, report=cluster.run("squeue").strip
        )
        yield
    finally:
        cluster.run("scancel", job)
        wait_for(f"the end of job {job}", lambda: cluster.state(job)[0] == "CANCELLED", 60)


def steps(project: Path, name: str) -> list[tuple[int, list[Any]]]:
    """The micro-batches of each step, with their losses, whichever rank had them, once if they were done again."""
    lines = {line for file in project.glob(f"{name}-*") if file.is_file() for line in file.read_text().splitlines()}
    rows = sorted(json.loads(line) for line in lines)
    return [(step, [row[1:] for row in group]) for step, group in groupby(rows, lambda row: row[0])]


def test_requeued_job_has_fewer_and_more_nodes_with_the_same_steps(
    cluster: Cluster, start: Callable[..., Run], project: Path
) -> None:
    alone = start("alone", "resources.nodes=1")
    assert alone.wait_end() == "COMPLETED", alone.account()
    with ExitStack() as all_but_two:
        all_but_two.enter_context(taken(cluster, len(cluster.run("sinfo", "-h", "-N", "-p", "main").splitlines()) - 2))
        run = start("run", "params.delay_s=0.3")
        run.wait_step(4)
        with ExitStack() as fewer:
            requeue_held(cluster, run)
            fewer.enter_context(taken(cluster, 1))
            go_on(cluster, run)
            run.wait_step(run.step() + 4)
            said = clusterdp(cluster, project, "status", str(run.files.path)).stdout
            assert ", 1 of up to 2 nodes" in said, said
            requeue_held(cluster, run)
        go_on(cluster, run)
        assert run.wait_end() == "COMPLETED", run.account()
    assert [len(event["nodes"].split(",")) for event in sizes(run)] == [2, 1, 2], run.account()
    restored = [(event["step"], event.get("world_size")) for event in run.events("restored")]
    assert len(restored) == 2, run.account()
    assert steps(project, "run") == steps(project, "alone"), run.account()
    assert len([*project.glob("run-[0-9]")]) == 4, "two nodes have two ranks each"
    assert not run.events("not-repeated"), run.account()


@pytest.mark.long  # on a real Slurm
def test_job_on_few_nodes_is_requeued_when_others_have_been_idle(
    cluster: Cluster, start: Callable[..., Run], project: Path
) -> None:
    everything = len(cluster.run("sinfo", "-h", "-N", "-p", "main").splitlines())
    with taken(cluster, everything - 2), ExitStack() as fewer:
        fewer.enter_context(taken(cluster, 1))
        run = start("run", "params.delay_s=0.4", "restart.grow_after_s=4")
        run.wait_step(4)
        fewer.close()
        wait_for("its requeue", lambda: run.events("requeued"), 60, report=run.account)
        assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["grown", "done"], run.account()
    assert [len(event["nodes"].split(",")) for event in sizes(run)] == [1, 2], run.account()
    assert [event["size"] for event in run.events("grows")] == [2], run.account()
    losses = [step for step, _ in steps(project, "run")]
    assert losses == [*range(32)], run.account()


@pytest.mark.slow  # here; in test-slurm it runs all the same
def test_lost_node_leaves_the_ranks_of_a_range_on_fewer_in_place(
    cluster: Cluster, start: Callable[..., Run], project: Path
) -> None:
    skip_without_keepers(cluster)
    alone = start("alone", "resources.nodes=1")
    assert alone.wait_end() == "COMPLETED", alone.account()
    saving = ("checkpoint.every_s=null", f"checkpoint.memory_s={MEMORY_S}")
    # On 22.05, the range ends at the tasks of its least nodes.
    each = 2 if cluster.run("srun", "--version").split()[-1] < "23" else 1
    run = start("run", "resources.nodes=2-4", f"resources.tasks_per_node={each}", f"params.delay_s={DELAY_S}", *saving)
    run.wait_step(1)
    first, second, third, fourth = nodes_of(run)
    with ExitStack() as without:
        for number, node in enumerate((third, second), 1):
            wait_for("copies", lambda: any(HELD in name for name in copies_of(run)), 60, report=run.account)
            run.wait_step(run.step() + 6)
            without.enter_context(lost(run, node))
            wait_for("a restart", lambda n=number: len(run.events("restored")) == n, 60, report=run.account)
        said = clusterdp(cluster, project, "status", str(run.files.path)).stdout
        assert ", 2 of up to 4 nodes" in said, said
        assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["node-lost", "node-lost", "done"], run.account()
    assert [event["size"] for event in run.events("restarted")] == [3, 2], run.account()
    left = [event["nodes"].split(",") for event in run.events("started")[1:]]
    assert left == [[first, second, fourth], [first, fourth]], run.account()
    assert steps(project, "run") == steps(project, "alone"), run.account()
    assert not run.events("not-repeated"), run.account()
    restored = [event["step"] for event in run.events("restored")]
    ledgers = [run.files.metrics / f"{attempt.name}.jsonl" for attempt in run.files.attempts()]
    trained = [max(int(line["step"]) for line in read_lines(file)) for file in ledgers]
    lost_steps = [was - at for was, at in zip(trained, restored, strict=False)]
    assert max(lost_steps) <= MEMORY_S / DELAY_S + 2, f"{lost_steps}: a copy counts two words after it is made"


def sizes(run: Run) -> list[dict[str, Any]]:
    expand = lambda nodes: ",".join(run.cluster.run("scontrol", "show", "hostnames", nodes).split())  # noqa: E731
    return [{**event, "nodes": expand(event["nodes"])} for event in run.events("started")]


def requeue_held(cluster: Cluster, run: Run) -> None:
    cluster.run("scontrol", "requeuehold", run.job)
    wait_for("the end of the attempt", lambda: cluster.state(run.job)[0] in ("PENDING", "REQUEUE_HOLD"), 60)


def go_on(cluster: Cluster, run: Run) -> None:
    cluster.run("scontrol", "release", run.job)
    cluster.start_now(run.job)
