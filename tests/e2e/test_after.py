"""Runs that follow runs (`after:`): each way in which the run before may end, on the fake and on a real Slurm."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from clusterdp.cli import main
from clusterdp.rundir import RunDir, SweepDir
from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

# Ends as the file `end` says, which the test writes: `0`, or the exit code of each attempt
PROGRAM = """
echo x >>$CLUSTERDP_RUN_DIR/ran
until [ -e end ]; do sleep 0.1; done
codes=($(cat end)); last=$(($(wc -l <$CLUSTERDP_RUN_DIR/ran) - 1))
exit ${codes[last]:-0}
"""
SETTINGS = """
snapshot: {enabled: false}
resources: {partition: main, nodes: 1, tasks_per_node: 1, time: 10}
restart: {in_place: false, max_crashes: 0}
"""
FOLLOWER = 'params: {first: "${after.run_dir}"}\ncommand: [bash, -c, "echo after ${params.first}"]'


class Project:
    """A submit directory with a first program, and a follower."""

    def __init__(self, cluster: Cluster, folder: Path):
        self.cluster, self.folder, self.jobs = cluster, folder, list[str]()
        (folder / "program.sh").write_text(PROGRAM)
        (folder / "first.yaml").write_text("params: {n: 0}\ncommand: [bash, program.sh, '${params.n}']" + SETTINGS)
        (folder / "next.yaml").write_text(FOLLOWER + SETTINGS)

    def __call__(self, *words: str) -> str:
        done = clusterdp(self.cluster, self.folder, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        done = clusterdp(self.cluster, self.folder, *words)
        assert done.returncode != 0 and "Traceback" not in done.stderr, done.stdout
        return done.stderr

    def submit(self, name: str, *words: str) -> Run:
        config = "next.yaml" if "--after" in words else "first.yaml"
        said = self("submit", config, f"run_dir={name}", "--cluster", "slurm", *words)
        self.jobs.append(said.split()[2].rstrip(":"))
        return Run(self.cluster, RunDir(self.folder / name), self.jobs[-1])

    def end(self, *codes: int) -> None:
        (self.folder / "end").write_text(" ".join(map(str, codes)) or "0")

    def look(self, name: str) -> dict[str, Any]:
        """What `clusterdp status --json` says. In this process: tests look often."""
        said = io.StringIO()
        with patch.dict(os.environ, self.cluster.environ()), redirect_stdout(said):
            assert main(["status", name, "--json"]) == 0
        found: dict[str, Any] = json.loads(said.getvalue())
        return found

    def state(self, name: str) -> tuple[str, str]:
        found = self.look(name)
        return found["state"], found["why"]

    def wait(self, name: str, state: str) -> str:
        """Until the run is so; returns why it is so."""
        wait_for(f"{name} to be {state}", lambda: self.state(name)[0] == state, 90, report=lambda: self("list"))
        return self.state(name)[1]

    def waits(self, name: str) -> None:
        """Until Slurm shows that the job waits for another one."""
        job = str(self.look(name)["job"])
        wait_for("the dependency", lambda: self.cluster.state(job)[1] == "Dependency", 30, report=lambda: self("list"))

    def log(self, name: str) -> str:
        return self("logs", name).strip()


@pytest.fixture
def at(cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(project)
    found = Project(cluster, project)
    yield found
    cluster.ask("scancel", *found.jobs)


def test_follower_starts_after_done_run_and_has_its_folder(at: Project) -> None:
    at.submit("a")
    at.submit("f", "--after", "a")
    at.waits("f")
    wait_for("a to run", lambda: at.state("f") == ("waiting", "after a (running)"), 30)
    assert "after a (running)" in at("why", "f") and "after a (running)" in at("list")
    at.end()
    at.wait("f", "done")
    assert f"after {at.folder}/a" in at.log("f")


def test_follower_waits_through_a_requeue(at: Project) -> None:
    first = at.submit("a")
    at.submit("f", "--after", "a")
    at.end(75, 0)
    assert first.wait_end() == "COMPLETED"
    at.wait("f", "done")
    assert first.causes() == ["asked", "done"]
    started = [run.events("started")[-1]["time"] for run in (first, Run(at.cluster, RunDir(at.folder / "f"), ""))]
    assert started == sorted(started)


def test_follower_starts_after_the_last_resubmitted_job(at: Project) -> None:
    first = at.submit("a", "restart.how=resubmit")
    follower = at.submit("f", "--after", "a")
    at.submit("g", "--after", "f")
    at.end(75, 75, 0)
    at.wait("g", "done")
    assert first.causes() == ["asked", "asked", "done"] and len(set(first.all_causes())) == 3
    assert follower.causes() == ["done"], "it has not begun before"


@pytest.mark.parametrize(("codes", "ended"), [((3,), "failed"), ((), "cancelled")])
def test_follower_of_a_failed_run_ends_with_reason(at: Project, codes: tuple[int, ...], ended: str) -> None:
    at.submit("a")
    followers = [at.submit("f", "--after", "a"), at.submit("g", "--after", "f"), at.submit("h", "--after", "any:a")]
    at.waits("g")
    if codes:
        at.end(*codes)
    else:
        at("cancel", "a")
    at.wait("h", "done")
    assert at.wait("f", "gave-up") == f"after a ({ended})"
    assert at.wait("g", "gave-up") == "after f (gave-up)"
    assert not followers[0].files.attempts(), "Slurm has given it no nodes"
    said = at.refused("submit", "next.yaml", "--after", "a")
    assert said.startswith(f"clusterdp: after: a is {ended}") and "`clusterdp resume a` first" in said
    assert "after: a is" in at.refused("resume", "f")


def test_follower_of_a_started_run_begins_beside_it(at: Project) -> None:
    at.submit("a")
    at.submit("f", "--after", "started:a")
    at.wait("f", "done")
    assert at.state("a")[0] == "running"


def test_follower_of_a_done_run_has_no_dependency(at: Project) -> None:
    at.end()
    at.submit("a")
    at.wait("a", "done")
    done = clusterdp(at.cluster, at.folder, "submit", "next.yaml", "--after", "a", "--dry-run")
    assert "--dependency" not in done.stderr and done.returncode == 0
    at.submit("f", "--after", "a")
    at.wait("f", "done")


def test_follower_without_dependency_starts_later_in_another_job(at: Project) -> None:
    """Slurm may forget a job, or an administrator may change the dependency: the batch program looks, too."""
    at.submit("a")
    follower = at.submit("f", "--after", "a")
    at.waits("f")
    wait_for("a to run", lambda: at.state("a")[0] == "running", 30)
    at.cluster.run("scontrol", "update", f"JobId={follower.job}", "Dependency=")
    wait_for("its next job", lambda: follower.events("requeued"), 60, report=follower.account)
    assert follower.all_causes() == {f"{follower.job}.0": "early"}
    at.waits("f")
    at.end()
    at.wait("f", "done")
    assert follower.causes() == ["early", "done"]


def test_follower_of_a_removed_run_ends_with_reason(at: Project) -> None:
    at.submit("a")
    follower = at.submit("f", "--after", "any:a")
    other = at.submit("g", "--after", "a")
    at.waits("g")
    at("cancel", "a")
    at.wait("f", "done")
    at.wait("g", "gave-up")
    at.submit("b")
    at.submit("h", "--after", "b")
    at.waits("h")
    assert "h is to start after it" in at.refused("rm", "b", "--yes")
    shutil.rmtree(at.folder / "b")
    at.cluster.run("scancel", at.jobs[-2])
    wait_for("the reason", lambda: at.state("h") == ("gave-up", "after b (gone)"), 90)
    assert follower.causes() == ["done"] and not other.causes()


def test_cancel_with_followers_cancels_all_and_starts_none(at: Project) -> None:
    at.submit("a")
    runs = [at.submit("f", "--after", "a"), at.submit("g", "--after", "any:f"), at.submit("h", "--after", "any:a")]
    at.waits("h")
    at("cancel", "a", "--with-followers")
    for name in "afgh":
        at.wait(name, "cancelled")
    assert not any(run.causes() for run in runs)


def test_sweeps_follow_as_a_whole_or_element_by_element(at: Project) -> None:
    at.submit("s", "--sweep", "params.n=0,1,2")
    at.submit("all", "--after", "s")
    at.submit("one", "--after", "s/1")
    (at.folder / "next.yaml").write_text(FOLLOWER.replace("after ", "${params.n} after ", 1) + "\n" + SETTINGS)
    at.submit("each", "--after", "each:s", "--sweep", "params.n=5,6,7")
    assert "it has 3 elements, and the new one has 2" in at.refused(
        "submit", "next.yaml", "--after", "each:s", "--sweep", "params.n=1,2"
    )
    at.waits("one")
    at.end()
    at.wait("all", "done")
    at.wait("one", "done")
    for number in range(3):
        at.wait(f"each/{number}", "done")
        assert at.log(f"each/{number}").endswith(f"{5 + number} after {at.folder}/s/{number}")


def test_follower_of_a_sweep_ends_if_an_element_fails(at: Project) -> None:
    (at.folder / "program.sh").write_text(PROGRAM.replace("exit $", "[ $1 != 1 ] || exit 4; exit $"))
    sweep = SweepDir(at.submit("s", "--sweep", "params.n=0,1").files.path)
    at.submit("all", "--after", "s")
    (at.folder / "next.yaml").write_text(FOLLOWER.replace("after ", "${params.n} after ", 1) + "\n" + SETTINGS)
    at.submit("each", "--after", "each:s", "--sweep", "params.n=5,6")
    at.end()
    at.wait("each/0", "done")
    assert at.wait("all", "gave-up") == "after s (failed)"
    assert at.wait("each/1", "gave-up") == "after s/1 (failed)"
    assert sweep.numbers() == [0, 1]
