"""A webhook hears of a run, once of each thing, whoever requeues the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import submit
from tests.receiver import receiving

pytestmark = pytest.mark.slow
TOLD = "notify.on=[end,failure,hang,requeue]"


@pytest.mark.long
@pytest.mark.parametrize(("builder", "partition"), [("sbatch", "low"), ("sbatch", "low0"), ("submitit", "low")])
def test_webhook_receives_one_notice_for_a_preemption_and_one_for_the_end(
    cluster: Cluster, project: Path, builder: str, partition: str
) -> None:
    """Without a grace time it is Slurm that requeues, and the next attempt that tells it."""
    words = ["params.epochs=2", "params.step_delay_s=0.1", f"backend={builder}", f"resources.partition={partition}"]
    with receiving() as server:
        run = submit(cluster, project, "configs/digits.yaml", *words, *webhook(project, server.url), TOLD)
        run.wait_step(5)
        cluster.preempt(run.job)
        assert run.wait_end() == "COMPLETED", run.account()
    first, last = server.texts()
    how = "requeued by the program" if builder == "submitit" else "preempted" if partition == "low" else ""
    assert first.startswith(f"digits (job {run.job}): {how}")
    assert " requeued" in first
    assert last.startswith(f"digits (job {run.job}): done at step ")
    assert all(text.endswith(f"\nclusterdp status {run.files.path}") for text in (first, last))


def test_webhook_receives_a_requeue_notice_then_a_failure_notice_after_repeated_crashes(
    cluster: Cluster, project: Path
) -> None:
    (project / "job.yaml").write_text("command: [bash, -c, 'echo \"ValueError: broken\"; exit 3']\n")
    limits = ("restart.max_crashes=1",)
    with receiving() as server:
        run = submit(cluster, project, "job.yaml", *limits, *webhook(project, server.url), TOLD)
        assert run.wait_end() == "FAILED", run.account()
    assert [text.splitlines() for text in server.texts()] == [
        [
            f"job (job {run.job}): crashed at its start; it starts again on the same nodes",
            f"clusterdp status {run.files.path}",
        ],
        [
            (
                f"job (job {run.job}): failed: crashed at its start (exit 3): ValueError: broken; "
                "restart.max_crashes allows no more than 1"
            ),
            f"clusterdp why {run.files.path}",
        ],
    ]


def webhook(project: Path, url: str) -> list[str]:
    """The words that name one. The file is beside the code, and not copied with it."""
    file = project / "hook"
    file.write_text(url)
    file.chmod(0o600)
    return [f"notify.webhook_file={file}", f"run_dir={project}/run"]
