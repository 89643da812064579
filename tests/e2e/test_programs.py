"""Programs that know nothing of clusterdp."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterdp.batch.files.rank_logs import text_of
from tests.e2e.cluster import Cluster
from tests.e2e.run import clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(240)

PROGRAM = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.tensor([float(dist.get_rank())])
dist.all_reduce(mine)
print("sum", int(mine), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], "argv", sys.argv[1:])
dist.destroy_process_group()
"""


def test_unmodified_program_finds_its_peers_and_gets_its_arguments_unchanged(
    cluster: Cluster, project: Path, forking: Path
) -> None:
    (project / "train.py").write_text(PROGRAM)
    word = 'it\'s $(not) `for` a \\ "shell"'
    python = forking if cluster.name == "fake" else sys.executable
    quoted = word.replace("\\", "\\\\").replace('"', '\\"')
    (project / "job.yaml").write_text(
        f'command: [{python}, train.py, "{quoted}"]\n'
        "resources: {nodes: 2, tasks_per_node: 2}\n"
        "restart: {max_crashes: 0}\n"
    )
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
    assert run.wait_end() == "COMPLETED", run.account()
    [attempt] = run.files.attempts()
    said = [text_of(str(attempt.logs), rank).strip().splitlines()[-1] for rank in range(4)]
    assert said == [f"sum 6 of 4 local {rank % 2} argv {[word]}" for rank in range(4)]
    assert run.causes() == ["done"]


SAVES = """\
trap 'sleep 1; touch saved; exit 7' TERM
while :; do sleep 0.1; done
"""


@pytest.mark.slow
@pytest.mark.long
def test_stopped_program_saves_and_is_not_requeued(cluster: Cluster, project: Path) -> None:
    (project / "program.sh").write_text("touch started\n" + SAVES.replace("exit 7", "exit 0"))
    (project / "job.yaml").write_text("command: [bash, program.sh]\nsnapshot: {enabled: false}\n")
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
    wait_for("the program's start", (project / "started").exists, 60, report=run.account)
    assert clusterdp(cluster, project, "stop", str(run.files.path)).returncode == 0
    assert run.wait_end() == "FAILED", run.account()
    assert (project / "saved").exists(), run.account()
    assert run.causes() == ["stopped"], run.account()


@pytest.mark.slow
def test_program_without_requeue_finishes_its_save_at_the_time_limit(cluster: Cluster, project: Path) -> None:
    (project / "program.sh").write_text(SAVES)
    (project / "job.yaml").write_text(
        "command: [bash, program.sh]\nsnapshot: {enabled: false}\nrestart: {requeue: false}\n"
        "resources: {partition: short, time: 1}\n"
    )
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
    assert run.wait_end(200) == "TIMEOUT", run.account()
    assert (project / "saved").exists(), run.account()
    wait_for("the script's last word", lambda: run.causes() == ["timeout"], 30, report=run.account)
    assert (run.files.attempts()[0].path / "exit").read_text().split()[0] == "7", run.account()
