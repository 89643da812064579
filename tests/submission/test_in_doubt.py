"""sbatch timed out, and the job may be there or not: a user must lose neither the job nor the folder that it needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import clusterdp
from clusterdp.errors import ConfigError, SubmitError, SubmitInDoubt
from clusterdp.operate.change.resume_check import check_resumable, uncancelled
from clusterdp.rundir import RunDir, read_events
from clusterdp.submission.job import Job
from clusterdp.submission.resume import plan_again, send_again
from clusterdp.submission.send.lock import RunLock
from tests.operate.conftest import HEADER

TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
ACCEPT = 'echo "$ID|PENDING|${@: -1}" >>"$QUEUE"'


class Slurm:
    """An sbatch that does what a test says, with $ID as the next job's, and a squeue of what sbatch has accepted."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ids = iter(range(41, 99))
        self.queue = folder / "queue"
        self.queue.touch()
        self.command("squeue", f"{HEADER}\n[[ $* == *%r* ]] && sed 's/[^|]*$/|/' {self.queue} || cat {self.queue}")
        self.command("srun", "true")

    def command(self, name: str, lines: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (self.folder / name).chmod(0o755)

    def sbatch(self, *lines: str) -> None:
        self.command("sbatch", "\n".join([f"ID={next(self.ids)} QUEUE={self.queue}", *lines]))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    for name in ("bin", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("clusterdp.submission.send.answers.PAUSES_S", (0, 0))
    return Slurm(tmp_path / "bin")


def submit(**more: object) -> Job:
    return clusterdp.submit({"name": "mine", "command": "true", "run_dir": "run", **more})


def resume(run: RunDir, *overrides: str) -> Job:
    plan = plan_again(run, None, overrides)
    with RunLock(run) as lock:
        check_resumable(run)
        with uncancelled(run):
            return send_again(plan, lock)


@pytest.mark.parametrize(
    "answer",
    [TIMED_OUT, "kill -9 $$", "echo Welcome to Site X; echo a job", "echo 'Zero Bytes' >&2; exit 1", "exit 137"],
)
def test_submit_finds_its_accepted_job_in_squeue_after_an_unusable_sbatch_answer(slurm: Slurm, answer: str) -> None:
    slurm.sbatch('echo "7|RUNNING|/else/where/job.sbatch" >>"$QUEUE"', ACCEPT, answer)
    job = submit()
    assert job.id == "41"
    assert job.run.script.exists()
    assert job.current_id == "41"


@pytest.mark.parametrize(
    "said", ["4242", "Welcome to Site X\\n4242", "Gr\\xfc\\xdfe\\n4242;cluster-1\\n100 hours left"]
)
def test_submit_finds_the_job_id_among_other_lines_of_sbatch(slurm: Slurm, said: str) -> None:
    slurm.sbatch(f"printf '{said}\\n'")
    assert submit().id == "4242"


def test_submit_after_an_sbatch_timeout_retries_a_failed_squeue(slurm: Slurm) -> None:
    slurm.sbatch(ACCEPT, TIMED_OUT)
    slurm.command("squeue", f"[ -e asked ] || {{ touch asked; echo busy >&2; exit 1; }}; cat {slurm.queue}")
    assert submit().id == "41"


def test_submit_with_unknown_outcome_keeps_the_run_folder_and_names_the_remedy(slurm: Slurm) -> None:
    slurm.sbatch(TIMED_OUT)
    what_to_do = r"timed out on send/recv operation\. The job may .*`squeue --me`.* mine: .*`clusterdp resume .*/run`"
    with pytest.raises(SubmitInDoubt, match=what_to_do) as caught:
        submit()
    assert "\n" not in str(caught.value)
    run = RunDir(Path("run").absolute())
    slurm.sbatch("echo $ID", ACCEPT)
    assert resume(run).id == "42"
    assert [event.get("job") for event in read_events(run)] == [None, "42"]


def test_resume_is_refused_if_an_unconfirmed_job_appears_in_squeue_later(slurm: Slurm) -> None:
    slurm.sbatch(TIMED_OUT)
    with pytest.raises(SubmitInDoubt):
        submit()
    run = RunDir(Path("run").absolute())
    slurm.queue.write_text(f"41|PENDING|{run.script}\n")
    with pytest.raises(clusterdp.errors.RunError, match="job 41 is PENDING"):
        resume(run)


def test_submit_with_two_new_jobs_after_sbatch_timeout_names_both_job_ids(slurm: Slurm) -> None:
    slurm.sbatch(ACCEPT, "ID=77", ACCEPT, TIMED_OUT)
    with pytest.raises(SubmitInDoubt, match=r"several new jobs: 41, 77\. `scancel` all but one"):
        submit()
    assert Path("run/job.sbatch").exists()


def test_unexpected_error_after_the_sbatch_call_keeps_the_run_folder(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.sbatch(ACCEPT, "echo $ID")
    monkeypatch.setattr("clusterdp.submission.send.sbatch.Job", None)
    with pytest.raises(TypeError):
        submit()
    assert Path("run/job.sbatch").exists()


def test_submit_unable_to_record_its_job_keeps_the_run_folder(slurm: Slurm) -> None:
    slurm.sbatch("rmdir run/events; touch run/events", "echo $ID")
    with pytest.raises(SubmitInDoubt, match=r"job 41 is submitted, but that cannot be written down.*scancel 41"):
        submit()
    assert Path("run/job.sbatch").exists()


def test_resume_after_sbatch_timeout_finds_its_new_job_beside_an_old_job(slurm: Slurm) -> None:
    slurm.sbatch(ACCEPT, "echo $ID")
    run = submit().run
    slurm.queue.write_text(f"41|FAILED|{run.script}\n")
    slurm.sbatch(ACCEPT, TIMED_OUT)
    assert resume(run, "resources.time=9").id == "42"


def test_resume_with_unknown_outcome_keeps_new_script_and_clears_the_cancelled_marker(slurm: Slurm) -> None:
    slurm.sbatch("echo $ID")
    run = submit().run
    run.cancelled.touch()
    slurm.sbatch(TIMED_OUT)
    with pytest.raises(SubmitInDoubt):
        resume(run, "resources.time=9")
    assert "--time=9" in run.script.read_text()
    assert not run.cancelled.exists()


def test_submitit_job_found_after_an_sbatch_timeout_has_its_pickle_file(slurm: Slurm) -> None:
    slurm.sbatch(ACCEPT, TIMED_OUT)
    job = submit(backend="submitit", command=None, entry="json:dumps", resources={"time": "5"})
    assert job.id == "41"
    assert (job.run.path / "submitit/41_submitted.pkl").exists()
    assert job.submitit.job_id == "41"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (TIMED_OUT, SubmitInDoubt),
        ("echo hm", SubmitInDoubt),
        ("echo no >&2; exit 1", SubmitInDoubt),
        ("echo sbatch: error: no >&2; exit 1", SubmitError),
    ],
)
def test_submitit_submit_keeps_the_run_folder_only_if_the_outcome_is_unknown(
    slurm: Slurm, answer: str, kind: type[Exception]
) -> None:
    slurm.sbatch(answer)
    with pytest.raises(SubmitError) as caught:
        submit(backend="submitit", command=None, entry="json:dumps", resources={"time": "5"})
    assert type(caught.value) is kind
    assert Path("run").exists() == (kind is SubmitInDoubt)


@pytest.mark.parametrize(
    ("extra", "environ", "lines"),
    [
        ({"clusters": "c1,c2"}, "c9", ["echo '41;c2'"]),
        ({"clusters": "c1,c2"}, "c9", ['echo CLUSTER: c2 >>"$QUEUE"', ACCEPT, TIMED_OUT]),
        ({}, "c2", ['echo "41;$SLURM_CLUSTERS"']),
    ],
)
def test_job_on_another_cluster_is_asked_for_there(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], environ: str, lines: list[str]
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", environ)
    slurm.command("scancel", f'echo "$*" >>{slurm.folder}/cancelled')
    slurm.sbatch(f'[ "$SLURM_CLUSTERS" = "{extra.get("clusters", environ)}" ] || exit 9', *lines)
    job = submit(resources={"extra": extra})
    assert [event["cluster"] for event in read_events(job.run)] == [";c2"]
    slurm.command("squeue", '[ "$1" = --clusters=c2 ] && echo "41|RUNNING|None|n1"')
    assert job.state == "RUNNING"
    job.cancel()
    assert (slurm.folder / "cancelled").read_text() == "--clusters=c2 41\n"
    assert os.environ["SLURM_CLUSTERS"] == environ


def test_submitit_job_on_one_of_several_clusters_is_refused(slurm: Slurm) -> None:
    values = {"backend": "submitit", "command": None, "entry": "json:dumps"}
    with pytest.raises(ConfigError, match=r"resources\.extra\.clusters: c1,c2 is several"):
        submit(**values, resources={"time": "5", "extra": {"clusters": "c1,c2"}})
    slurm.sbatch("echo Submitted batch job 41 on cluster c2")
    job = submit(**values, resources={"time": "5", "extra": {"clusters": "c2"}})
    assert [event["cluster"] for event in read_events(job.run)] == [";c2"]
