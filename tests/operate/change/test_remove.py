"""`clusterdp rm` removes what is over and nothing else: this is the one verb that can lose work."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterdp import cli, config
from clusterdp.cli import rm as cli_rm
from clusterdp.errors import RunError
from clusterdp.operate.change import remove as module
from clusterdp.operate.find.find_run import find_run, known_runs
from clusterdp.operate.find.run_index import remember
from clusterdp.operate.listing.list_runs import find_all
from clusterdp.rundir import RunDir
from clusterdp.submission.send.lock import RunLock
from tests.operate.builder import RunBuilder
from tests.operate.conftest import HEADER, FakeQueue

FAR = "/nowhere/slurm.conf"


@pytest.fixture
def over(builder: RunBuilder, queue: FakeQueue) -> RunDir:
    builder.submitted().attempt().trained(1, 40).saved(40).finished(40)
    builder.run.config.write_text(config.dump(config.from_mapping({"command": ["true"], "name": "digits"})))
    (builder.run.path / "big").write_bytes(b"x" * 1_000_000)
    return builder.run


def rm(*words: str) -> int:
    return cli.main(["rm", *words])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_rm_removes_a_finished_run_and_dry_run_only_lists_it(
    over: RunDir, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(over)
    assert rm("digits", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "goes   runs/digits  1.0" in out
    assert "1 run would go, and free 1.0" in out
    assert rm("digits", "runs/digits", "--yes") == 0
    assert capsys.readouterr().out.startswith("runs/digits: removed, 1.0")
    assert files(elsewhere / "runs") == set()
    with pytest.raises(RunError, match="none yet"):
        find_run()
    assert rm("digits", "--yes") == 4


def test_rm_requires_run_names_and_a_confirmation(
    over: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rm() == 2
    assert "say which. The latest is runs/digits: `clusterdp rm runs/digits`" in capsys.readouterr().err
    assert rm("digits") == 2
    assert "--yes removes, --dry-run only says" in capsys.readouterr().err
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    answers = iter(["", "n", "y"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    for _ in range(2):
        assert rm("digits") == 0
        assert "nothing was removed" in capsys.readouterr().out
        assert over.path.exists()
    assert rm("digits") == 0
    assert not over.path.exists()


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "NEWSTATE"])
def test_rm_refuses_a_run_with_a_live_job(
    over: RunDir, queue: FakeQueue, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.answers(f"7|{state}|None|")
    before = files(over.path)
    assert rm("digits", "--yes") == 4
    assert (
        f"runs/digits: is not over, for job 7 is {state}. Wait for its end, or `scancel 7`" in capsys.readouterr().err
    )
    assert files(over.path) == before


def test_rm_refuses_a_run_with_a_queued_job_submitted_by_hand(over: RunDir, queue: FakeQueue) -> None:
    """`sbatch job.sbatch` by hand, which is still in the queue."""
    queue.write("squeue", f'{HEADER}\ncase "$*" in *--me*) echo "9|PENDING|{over.path}/job.sbatch";; esac\n')
    assert rm("digits", "--yes") == 4
    assert over.path.exists()


def slurm_is_silent(builder: RunBuilder, queue: FakeQueue) -> None:
    queue.answers(error="slurm_load_jobs error: no answer")


def on_another_cluster(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.attempt("7.1")
    (queue.folder / "squeue").unlink()


def in_doubt_elsewhere(builder: RunBuilder, queue: FakeQueue) -> None:
    shutil.rmtree(builder.run.path / "attempts")
    for file in builder.run.events.iterdir():
        file.unlink()
    builder.event("submit-in-doubt", "submit-unknown", "submit", name="digits")
    (queue.folder / "squeue").unlink()


@pytest.mark.parametrize("how", [slurm_is_silent, on_another_cluster, in_doubt_elsewhere])
def test_rm_refuses_a_run_of_unknown_state(
    over: RunDir, builder: RunBuilder, queue: FakeQueue, how: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    how(builder, queue)
    assert rm("digits", "--yes") in (3, 4)
    assert "Try again once it is" in (err := capsys.readouterr().err) or "where it was submitted" in err
    assert over.path.exists()


def test_rm_removes_runs_of_a_deleted_cluster_and_never_submitted_runs(
    builder: RunBuilder, queue: FakeQueue, elsewhere: Path, tmp_path: Path
) -> None:
    builder.submitted(cluster=str(tmp_path / "gone/slurm.conf")).attempt()
    half = RunDir(elsewhere / "runs/half")
    half.events.mkdir(parents=True)
    half.submits.mkdir()
    (half.submits / "000001").write_text('{"host": "h", "pid": 1, "since": 1.5, "released": 2.5}\n')
    assert rm("digits", "half", "--yes") == 0
    assert files(elsewhere / "runs") == set()


def test_rm_removes_finished_runs_even_if_other_named_runs_are_refused(
    over: RunDir, elsewhere: Path, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    RunBuilder(elsewhere / "runs/live").submitted("8").attempt("8.0")
    queue.answers("8|RUNNING|None|n1")
    queue.write("squeue", HEADER + '\ncase "$*" in *--jobs=8*) echo "8|RUNNING|None|n1";; esac\n')
    assert rm("live", "nosuch", "digits", "--yes") == 4
    assert capsys.readouterr().err.count("clusterdp: ") == 2
    assert (elsewhere / "runs/live").exists()
    assert not over.path.exists()


def test_rm_refuses_foreign_folders_links_nested_runs_and_the_current_folder(
    over: RunDir, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = elsewhere / "project"  # somebody's own, with a config.yaml
    project.mkdir()
    (project / "config.yaml").write_text("a: 1\n")
    (elsewhere / "link").symlink_to(over.path)
    inner = RunBuilder(over.path / "inner").submitted("9").run
    inner.submits.mkdir()
    for word, said in (
        ("project", "no record of a submit"),
        ("link", f"is a link to {over.path}"),
        ("runs", "not a run folder"),
        ("digits", "another run lies in it"),
    ):
        assert rm(word, "--yes") == 4
        assert said in capsys.readouterr().err
    shutil.rmtree(inner.path)
    monkeypatch.chdir(over.events)
    for word in (str(over.path), ".."):
        assert rm(word, "--yes") == 4
        assert "you are in it" in capsys.readouterr().err
    assert over.path.exists()


def test_rm_deletes_no_files_behind_symlinks(over: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    over.checkpoints.symlink_to(outside)
    (over.path / "deep").mkdir()
    (over.path / "deep/link").symlink_to(outside / "file")
    assert rm("digits", "--yes") == 0
    assert f"its checkpoints stay in {outside}" in capsys.readouterr().out
    assert files(outside) == {"file"}


@pytest.mark.parametrize("url", ["s3://bucket/run", "/scratch/x", "../elsewhere"])
def test_rm_dry_run_lists_the_checkpoint_url_as_kept(
    over: RunDir, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"command": ["true"], "name": "digits", "checkpoint": {"url": url}}
    over.config.write_text(config.dump(config.from_mapping(values)))
    assert rm("digits", "--dry-run") == 0
    assert url in capsys.readouterr().out.split("stays")[1]


def test_rm_refuses_a_run_locked_by_a_submit(over: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock(over):
        assert rm("digits", "--yes") == 4
    assert "has been submitting a job of it" in capsys.readouterr().err
    assert over.path.exists()


def test_rm_refuses_a_run_resumed_during_the_confirmation(
    over: RunDir, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = module.plan_removal("digits")
    monkeypatch.setattr(cli_rm, "plan_removal", lambda word: plan)
    queue.answers("7|PENDING|None|")
    assert rm("digits", "--yes") == 4
    assert over.path.exists()


def test_failed_rm_hides_the_run_and_a_second_rm_removes_the_rest(
    over: RunDir, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(over)
    rmtree = shutil.rmtree

    def dies(folder: Path) -> None:
        if folder.exists():
            (folder / "big").unlink()
            raise PermissionError(13, "Permission denied", str(folder / "events"))
        rmtree(folder)

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", dies)
        assert rm("digits", "--yes") == 4
    assert "`clusterdp rm runs/digits` removes the rest" in capsys.readouterr().err
    rest = elsewhere / "runs/.digits.removing"
    assert rest.is_dir()
    assert list(known_runs()) == []
    assert [each.path for each in find_all(everywhere=True)] == [str(over.path)]  # of the index, and gone
    assert cli.main(["list", "--all"]) == 0
    assert capsys.readouterr().out == "No runs yet.\n"
    with pytest.raises(RunError, match=r"is left of a run that was removed\. `clusterdp rm runs/digits`"):
        find_run("runs/.digits.removing")
    assert rm("digits", "--dry-run") == 0
    assert "what an interrupted removal has left" in capsys.readouterr().out
    assert rm("digits", "--yes") == 0
    assert files(elsewhere / "runs") == set()


def test_ctrl_c_during_rm_reports_the_partly_removed_run(
    over: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt if folder.exists() else FileNotFoundError

    monkeypatch.setattr(module.shutil, "rmtree", interrupted)
    assert rm("digits", "--yes") == 130
    assert "A part of runs/digits is removed; `clusterdp rm runs/digits` removes the rest" in capsys.readouterr().err


def test_rm_removes_leftovers_of_an_interrupted_rm(over: RunDir, elsewhere: Path) -> None:
    rest = elsewhere / "runs/.digits.removing"
    (rest / "events").mkdir(parents=True)
    assert rm("digits", "--yes") == 0
    assert files(elsewhere / "runs") == set()


def test_rm_counts_hard_linked_files_only_if_their_space_is_freed(over: RunDir, tmp_path: Path) -> None:
    before = module.plan_removal("digits").nbytes
    assert 1_000_000 <= before < 1_200_000
    os.link(over.path / "big", over.path / "big2")
    assert module.plan_removal("digits").nbytes == before
    os.link(over.path / "big", tmp_path / "of another run")
    assert module.plan_removal("digits").nbytes < 200_000


def test_rm_removes_a_run_of_a_stopped_but_still_selected_fake_cluster(
    builder: RunBuilder, queue: FakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "fake/slurm.conf"
    (tmp_path / "fake/state").mkdir(parents=True)
    for file in (conf, tmp_path / "fake/state/shape.json"):
        file.touch()
    monkeypatch.setenv("SLURM_CONF", str(conf))
    builder.submitted(cluster=str(conf)).attempt()
    queue.answers(error="squeue: the cluster is down")
    assert rm("digits", "--yes") == 0
    assert not builder.run.path.exists()


def test_rm_of_a_missing_run_without_yes_reports_the_missing_folder(
    over: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rm("nosuch") == 4
    assert "nosuch: no such run folder" in capsys.readouterr().err


def test_rm_dry_run_reports_an_unreadable_config(over: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    over.config.unlink()
    os.mkfifo(over.config)
    assert rm("digits", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "(runs/digits/config.yaml: cannot be read: not a plain file. Name the checkpoints' folder.)" in said
