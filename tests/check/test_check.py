"""`clusterdp check` as a user sees it, where there is no Slurm; and the part of it that submit does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterdp.check.subject import last_run
from clusterdp.cli import main
from clusterdp.operate.find.run_index import remember
from clusterdp.rundir import Ledger, RunDir
from tests.check.builder import subject

TRAIN = "def main(job, lr=0.1):\n    pass\n"
CONFIG = "name: small\nentry: train:main\nresources:\n  nodes: 2\n  time: 1-0\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CLUSTERDP_SITE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "cfg.yaml").write_text(CONFIG)
    monkeypatch.chdir(folder)
    return folder


def test_check_passes_a_good_config_and_writes_no_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "cfg.yaml"]) == 0
    assert capsys.readouterr().out == (
        "No scheduler was asked (there is no sbatch here): limits of partition, QOS and\n  nodes were not looked at.\n"
        "Nothing found that would fail, as far as is known without Slurm.\n"
    )
    assert sorted(path.name for path in project.iterdir()) == ["cfg.yaml", "train.py"]


def test_check_prints_errors_first_with_config_lines_and_exits_1(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "cfg.yaml").write_text(CONFIG + "checkpoint: {every_s: null}\nlaunch:\n  signal: USR1@90\n")
    assert main(["check", "cfg.yaml"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "error",
        "  cfg.yaml:8: launch.signal: USR1 is not handled in entry jobs, which stop at",
        "    TERM and USR2.",
        "    The ranks die of it before each time limit.",
        "    -> Leave it out, or write USR2.",
        "",
        "warning",
        "  cfg.yaml:6: checkpoint.every_s: no checkpoint is saved while the training goes",
        "    on, only at a stop.",
        "    A crash or a lost node loses the whole attempt.",
        "    -> Set every_s, e.g. 600.",
        "",
        "No scheduler was asked (there is no sbatch here): limits of partition, QOS and",
        "  nodes were not looked at.",
        "1 error: this would fail. Besides, 1 warning.",
    ]


def test_check_json_reports_name_failure_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "cfg.yaml", "launch.signal=USR1@90", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["name"], said["fails"], said["asked_slurm"]) == ("small", True, False)
    assert [(each["level"], each["key"]) for each in said["findings"]] == [("error", "launch.signal")]


def test_check_accepts_a_sweep_but_refuses_an_unknown_sweep_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "cfg.yaml", "--sweep", "params.lr=0.1,0.2"]) == 0
    assert main(["check", "cfg.yaml", "--sweep", "params.rl=0.1,0.2"]) == 2  # as submit says it
    assert "rl" in capsys.readouterr().err


def test_finding_in_a_script_names_the_line_of_the_config(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "script: |\n  cd $SCRATCH\n  export MASTER_PORT=29500\n  python train.py\n"
    (project / "cfg.yaml").write_text(CONFIG.replace("entry: train:main\n", script))
    assert main(["check", "cfg.yaml"]) == 0
    assert "  cfg.yaml:4: script: the port is hard-coded: export MASTER_PORT=29500.\n" in capsys.readouterr().out


def test_check_probe_leaves_no_file_and_reports_an_unwritable_checkpoint_url(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fsspec

    store = ["checkpoint.url=memory://check-probe/x"]
    assert main(["check", "cfg.yaml", *store, "--probe"]) == 0
    assert fsspec.filesystem("memory").find("/check-probe") == []
    assert sorted(path.name for path in project.iterdir()) == ["cfg.yaml", "train.py"]
    for url in (f"file://{project}/a/b", f"{project}/a/b"):  # the job makes the folder
        assert main(["check", "cfg.yaml", f"checkpoint.url={url}", "--probe"]) == 0
    assert not (project / "a").exists()
    assert main(["check", "cfg.yaml", "checkpoint.url=local:///dev/null/x", "--probe"]) == 1
    assert "a file cannot be put there" in " ".join(capsys.readouterr().out.split())


def test_submit_dry_run_prints_errors_found_without_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "cfg.yaml", "--dry-run", "checkpoint.url=/dev/null/x", "run_dir=r"]) == 0
    assert "checkpoint.url: /dev/null is not a folder" in capsys.readouterr().err
    assert main(["submit", "cfg.yaml", "--dry-run", "launch.signal=USR2@20", "run_dir=r"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["submit", "cfg.yaml", "--dry-run", "resources.mem=64", "run_dir=r"]) == 0
    assert "command line: resources.mem: 64 is 64 MB: Slurm counts megabytes" in capsys.readouterr().err


def test_last_run_takes_checkpoint_size_from_the_newest_run_with_equal_name(project: Path) -> None:
    for name, event in (
        ("small-1", {"bytes": 10, "seconds": 1.5}),
        ("small-2", {"bytes": 30, "seconds": 0.5}),
        ("other-1", {"bytes": 90}),
    ):
        run = RunDir(project / "runs" / name)
        run.events.mkdir(parents=True)
        Ledger(run, "7.0", "rank").write("saved", step=1, **event)
        remember(run)
    found = last_run("small", project)
    assert found and (found.path.name, found.bytes, found.save_s) == ("small-2", 30, 0.5)
    assert last_run("small", project / "elsewhere") is None
    assert subject(project, {}, found).last is found
