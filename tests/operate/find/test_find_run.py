"""The user names a run in few words; the wrong run must never be meant."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from clusterdp import cli
from clusterdp.config import dump, from_mapping
from clusterdp.errors import RunError
from clusterdp.operate.find.find_run import find_run
from clusterdp.operate.find.run_index import index_path, noted_runs, remember
from clusterdp.rundir import RunDir
from tests.operate.builder import RunBuilder


def test_find_run_takes_a_run_folder(elsewhere: Path) -> None:
    RunBuilder(elsewhere / "mine")
    assert find_run("mine").path == elsewhere / "mine"


def test_find_run_finds_a_name_in_the_runs_folder(elsewhere: Path) -> None:
    RunBuilder(elsewhere / "runs" / "digits-1")
    assert find_run("digits-1").path == elsewhere / "runs" / "digits-1"


def test_find_run_without_an_argument_takes_the_run_submitted_last(elsewhere: Path, tmp_path: Path) -> None:
    RunBuilder(elsewhere / "runs" / "a")
    far = RunBuilder(tmp_path / "scratch" / "b")
    remember(RunDir(elsewhere / "runs" / "a"))
    remember(far.run)
    assert find_run().path == far.run.path
    remember(RunDir(elsewhere / "runs" / "a"))  # resumed
    assert find_run().path == elsewhere / "runs" / "a"


def test_latest_run_belongs_to_the_current_project_never_to_another_project(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(RunBuilder(elsewhere / "runs" / "a").run)
    other = tmp_path / "other"
    (other / "src").mkdir(parents=True)
    monkeypatch.chdir(other)
    remember(RunBuilder(tmp_path / "scratch" / "b").run)  # run_dir=/scratch/b
    assert find_run().path == tmp_path / "scratch" / "b"
    monkeypatch.chdir(elsewhere)
    assert find_run().path == elsewhere / "runs" / "a"
    monkeypatch.chdir(tmp_path / "scratch" / "b")
    assert find_run().path == tmp_path / "scratch" / "b"
    assert capsys.readouterr().err == ""
    monkeypatch.chdir(other / "src")
    assert find_run().path == tmp_path / "scratch" / "b"
    said = f"clusterdp: no run in this folder; the latest elsewhere is {tmp_path}/scratch/b\n"
    assert capsys.readouterr().err == said
    (tmp_path / "third").mkdir()
    monkeypatch.chdir(tmp_path / "third")  # another project
    with pytest.raises(RunError, match=rf"RUN: there is none of this folder; the latest elsewhere is {tmp_path}/sc"):
        find_run()
    monkeypatch.chdir(other / "src")
    RunBuilder(other / "src" / "runs" / "c")  # that nobody has remembered
    assert find_run().path.name == "c"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("remembered", [True, False])
def test_profile_run_is_never_the_latest_run(elsewhere: Path, remembered: bool) -> None:
    """Whoever asks for the status of the latest means a training."""
    for when, (name, steps) in enumerate({"trains": None, "measures": 50}.items()):
        run = RunBuilder(elsewhere / "runs" / name).run
        run.config.write_text(dump(from_mapping({"entry": "a:b", "profile": {"steps": steps}})))
        os.utime(run.config, (when, when))
        if remembered:
            remember(run)
    assert find_run().path.name == "trains"
    assert find_run("measures").path.name == "measures"


def test_find_run_skips_a_deleted_latest_run(elsewhere: Path, tmp_path: Path) -> None:
    here = RunBuilder(elsewhere / "runs" / "a")
    remember(here.run)
    remember(RunDir(tmp_path / "deleted"))
    assert find_run().path == here.run.path


def test_latest_run_without_an_index_is_the_newest_in_the_runs_folder(elsewhere: Path) -> None:
    for name, when in (("a", 100), ("b", 300), ("c", 200)):
        os.utime(RunBuilder(elsewhere / "runs" / name).run.config, (when, when))
    assert find_run().path.name == "b"


@pytest.mark.parametrize("how", ["submitted", "attempt"])
def test_find_run_takes_a_job_id(elsewhere: Path, how: str) -> None:
    RunBuilder(elsewhere / "runs" / "a").submitted("1234")
    b = RunBuilder(elsewhere / "runs" / "b")
    _ = b.submitted("123") if how == "submitted" else b.attempt("123.2")
    assert find_run("123").path.name == "b"


def test_find_run_by_a_reused_job_id_takes_the_run_submitted_last(elsewhere: Path) -> None:
    first, second = (RunBuilder(elsewhere / "runs" / name).submitted("3") for name in "ab")
    remember(second.run)
    remember(first.run)
    assert find_run("3").path.name == "a"


def test_find_run_by_an_indexed_job_id_reads_no_other_run(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later of two, also if the first was resumed since; and not where the folder has no such job."""
    first, second, other = (RunBuilder(elsewhere / "runs" / name) for name in "abc")
    for builder, job in ((first, "3"), (second, "3"), (other, "4"), (first, "5")):
        builder.submitted(job)
        remember(builder.run, [job])
    remember(other.run, ["3"])
    monkeypatch.setattr("clusterdp.operate.find.find_run.known_runs", lambda: iter(()))
    assert [find_run(job).path.name for job in ("3", "4", "5")] == ["b", "c", "a"]
    with pytest.raises(RunError, match="6: no run of that job"):
        find_run("6")


def test_missing_run_error_names_the_searched_places(elsewhere: Path) -> None:
    with pytest.raises(RunError) as error:
        find_run()
    assert str(elsewhere / "runs") in str(error.value)
    assert str(index_path()) in str(error.value)


@pytest.mark.parametrize("word", ["nosuch", "99", "/no/such/folder"])
def test_unknown_run_error_offers_the_latest_run(elsewhere: Path, word: str) -> None:
    remember(RunBuilder(elsewhere / "runs" / "a").run)
    with pytest.raises(RunError, match=f"{word}.*The latest is .*/runs/a"):
        find_run(word)


def test_find_run_refuses_a_folder_without_a_run(elsewhere: Path) -> None:
    (elsewhere / "runs").mkdir()
    with pytest.raises(RunError, match="runs: not a run folder"):
        find_run("runs")


def test_run_index_has_mode_0600_and_survives_malformed_lines(elsewhere: Path) -> None:
    run = RunBuilder(elsewhere / "far" / "a").run
    remember(run)
    assert stat.S_IMODE(index_path().stat().st_mode) == 0o600
    with index_path().open("a") as file:
        file.write('{"time": 1, "run": "/x"}\n' * 1500 + '[1]\n{"time": null}\n{"run": 7}\n{"run"')
    assert find_run().path == run.path
    remember(RunDir(elsewhere / "gone"))
    remember(RunDir(elsewhere / "gone"))
    assert len(index_path().read_text().splitlines()) == 1506  # the torn one has taken the next with it
    assert [each.path for each in noted_runs()] == [str(elsewhere / "gone"), "/x", str(run.path)]
    assert find_run().path == run.path


def test_unwritable_run_index_is_ignored_by_remember(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember(RunDir(tmp_path))
    assert not index_path().exists()


def test_find_run_skips_unreadable_folders_and_refuses_them_by_name(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    RunBuilder(elsewhere / "runs/mine").submitted("8")
    (elsewhere / "runs/closed").mkdir()
    real = os.stat

    def denied(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if "runs/closed/" in os.fspath(path):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", denied)
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in os.fspath(path))
    assert find_run("8").path == find_run().path == elsewhere / "runs/mine"
    with pytest.raises(RunError, match=r"nothing: no such run folder, nor one of that name in runs/\. The latest is"):
        find_run("nothing")
    for word in ("closed", "runs/closed"):
        with pytest.raises(RunError, match=r"^runs/closed: you may not read this folder\."):
            find_run(word)
    assert cli.main(["list"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[0] == "mine"
    assert f"clusterdp: left out: {elsewhere}/runs/closed: Permission denied." in said.err


def test_missing_run_error_suggests_a_run_with_a_unique_name_prefix(elsewhere: Path) -> None:
    for name in ("digits-1", "digits-2", "lenet-1"):
        RunBuilder(elsewhere / "runs" / name)
    with pytest.raises(RunError, match=r"len: no such run folder, .* Did you mean lenet-1\?"):
        find_run("len")
    with pytest.raises(RunError, match=r"digits: no such run folder, .* The latest is "):
        find_run("digits")
