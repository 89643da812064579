"""Jobs that end by themselves in their grace time, and what comes after.

Slurm 22.05 takes such a job for ended. 24.05 and later requeue it, whatever its exit code; up to 25.11 they do so once
more when the job ends the next time. People see the same: the same states, and no program that runs once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.long,
]  # on the machine's own Slurm; test_release.py has them on 24.11

SETTINGS = """
snapshot: {enabled: false}
resources: {partition: low, nodes: 1, tasks_per_node: 1, time: 10}
restart: {max_crashes: 0}
"""
FINISHES = """\
import signal, time

def main(job):
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    with open("ran", "a") as file:
        file.write("x")
    while not over:
        time.sleep(0.1)
"""
SAVES = """\
trap 'touch saved; exit $1' TERM
printf x >>ran
[ ! -e saved ] || exit $2
while :; do sleep 0.1; done
"""


@dataclass(frozen=True)
class Story:
    config: str
    causes: tuple[str, ...]
    state: str = "COMPLETED"
    ended: str = "done"
    exit: int | None = None


STORIES = {
    "an entry that finishes in it": Story("entry: train:main", ("done",)),
    "a command that saves": Story("command: [bash, saves.sh, '0', '0']", ("preempted", "done")),
    "a script that saves and fails": Story("script: exec bash saves.sh 3 0", ("preempted", "done")),
    "a command that crashes later": Story(
        "command: [bash, saves.sh, '0', '9']", ("preempted", "start"), "FAILED", "failed", 9
    ),
}


@pytest.fixture(params=STORIES.values(), ids=list(STORIES))
def story(request: pytest.FixtureRequest) -> Story:
    told: Story = request.param
    return told


@pytest.fixture
def run(story: Story, cluster: Cluster, project: Path) -> Iterator[Run]:
    (project / "train.py").write_text(FINISHES)
    (project / "saves.sh").write_text(SAVES)
    (project / "job.yaml").write_text(story.config + SETTINGS)
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
    yield run
    cluster.run("scancel", run.job)


def test_job_ending_in_its_grace_time_runs_once_more_only_if_unfinished(run: Run, story: Story, project: Path) -> None:
    wait_for("the program", (project / "ran").exists, 60, report=run.account)
    run.cluster.preempt(run.job)
    assert run.wait_end() == story.state, run.account()
    assert run.causes() == list(story.causes), run.account()
    assert (project / "ran").read_text() == "x" * len(story.causes), run.account()
    done = clusterdp(run.cluster, project, "status", "--json", str(run.files.path))
    status = json.loads(done.stdout)
    assert (status["state"], status["why"]) == (story.ended, ""), done.stdout
    assert status["attempts"][-1]["exit"] == story.exit, done.stdout
