"""The command line itself: words, exit codes, what is printed where. The verbs have tests of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import clusterdp
from clusterdp import cli
from clusterdp.submission.render.shipped_files import find_config
from tests.operate.builder import RunBuilder

CONFIG = "command: [echo, hello]\nresources: {time: 5}\n"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a config, an sbatch that answers 41, and no runs of other tests in sight."""
    (tmp_path / "bin").mkdir()
    for name, line in {"sbatch": "echo 41", "squeue": ""}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("cfg.yaml").write_text(CONFIG)
    return tmp_path / "work"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "clusterdp", *words], capture_output=True, text=True, check=False)


def test_version_prints_the_version_and_help_lists_the_verbs() -> None:
    assert run("--version").stdout == f"clusterdp {clusterdp.__version__}\n"
    told = run("--help").stdout
    assert run().stdout == told
    for verb in ("submit", "status", "logs", "watch", "cancel", "resume", "show", "configs", "checkpoint", "fake"):
        assert f"  {verb} " in told
    assert len(told.splitlines()) < 24  # a terminal of 80 x 24, with the next prompt
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize("columns", [60, 110])
def test_help_is_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(map(len, run("logs", "--help").stdout.partition("options:")[2].partition("example:")[0].splitlines()))
    assert columns - 10 < widest <= columns - 2


@pytest.mark.parametrize(
    ("words", "late"),
    [
        ("--help", {"shutil", "subprocess", "pathlib"}),
        ("status run", {"shutil", "subprocess", "socket", "yaml"}),
    ],
)
def test_help_and_status_load_few_modules(work: Path, words: str, late: set[str]) -> None:
    RunBuilder(work / "run").submitted().attempt().finished()
    command = [sys.executable, "-X", "importtime", "-m", "clusterdp", *words.split()]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    loaded = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
    assert "clusterdp.cli.arguments" in loaded
    assert not loaded & late


def test_submit_prints_job_run_folder_and_next_command(work: Path) -> None:
    done = run("submit", "cfg.yaml", "run_dir=r")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Submitted job 41: {work}/r\n")
    assert "clusterdp watch 41" in done.stdout


def test_submit_takes_values_and_options_in_any_order(work: Path) -> None:
    for words in (
        ["--dry-run", "cfg.yaml", "name=x"],
        ["cfg.yaml", "name=x", "--dry-run"],
        ["cfg.yaml", "--dry-run", "name=x"],
    ):
        assert "--job-name=x\n" in run("submit", *words).stdout


def test_unexpected_word_or_option_is_refused(work: Path) -> None:
    assert run("status", "a", "b=c").returncode == 2
    assert "--nope: is not expected here." in run("submit", "cfg.yaml", "--nope").stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["submit", "cfg.yaml", "nope=1"], 2),
        (["submit", "missing.yaml"], 2),
        (["submit", "cfg.yaml", "command=null", "entry=nowhere:main"], 2),
        (["status", "no-such-run"], 4),
        (["fake", "status", "--dir", "nowhere"], 7),
    ],
)
def test_user_mistake_is_one_line_on_stderr_and_writes_no_file(work: Path, words: list[str], code: int) -> None:
    before = sorted(work.iterdir())
    done = run(*words)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("clusterdp: ")
    assert done.stderr.count("\n") == 1
    assert sorted(work.iterdir()) == before


def test_debug_option_prints_the_traceback(work: Path) -> None:
    assert "Traceback" in run("--debug", "submit", "missing.yaml").stderr


def test_submit_refused_by_sbatch_exits_3_with_its_message(work: Path) -> None:
    (work.parent / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: nope' >&2; exit 1\n")
    done = run("submit", "cfg.yaml")
    assert done.returncode == 3
    assert "sbatch: error: nope" in done.stderr
    assert not Path("runs").exists()


def test_submit_without_sbatch_exits_3_and_names_cluster_local(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = work.parent / "bare"
    bare.mkdir()
    monkeypatch.setenv("PATH", str(bare))
    done = run("submit", "cfg.yaml")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "clusterdp: --cluster auto: no sbatch here. `--cluster local` runs it on this machine.\n"
    assert not Path("runs").exists()
    assert run("submit", "cfg.yaml", "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["cancel"], "clusterdp cancel runs/r"),
        (["resume", "resources.time=8", "name=a b"], "clusterdp resume runs/r resources.time=8 'name=a b'"),
        (["resume", "--from", "3"], "clusterdp resume runs/r --from 3"),
    ],
)
def test_cancel_and_resume_require_the_name_of_the_run(work: Path, words: list[str], command: str) -> None:
    Path("runs/r").mkdir(parents=True)
    Path("runs/r/config.yaml").write_text(CONFIG)
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr == f"clusterdp: RUN: say which. The latest is runs/r: `{command}`\n"
    assert [path.name for path in Path("runs/r").iterdir()] == ["config.yaml"]


def test_resume_takes_its_words_in_any_order(work: Path) -> None:
    Path("r").mkdir()
    Path("r/config.yaml").write_text(CONFIG)
    for words in (["r", "nope=1", "--from", "3"], ["--from", "3", "r", "nope=1"], ["r", "--from", "3", "nope=1"]):
        assert "nope" in run("resume", *words).stderr


def test_show_prints_yaml_with_the_source_of_each_value(work: Path) -> None:
    done = run("show", "cfg.yaml", "resources.nodes=3", "notify.on=[]")
    lines = {line.split("#")[0].strip(): line.split("#")[1].strip() for line in done.stdout.splitlines() if "#" in line}
    assert lines["nodes: 3"] == "command line"
    assert lines["time: '5'"] == "cfg.yaml:2"
    assert "backend" not in done.stdout  # has its default
    assert lines["'on': []"] == "command line"
    assert yaml.safe_load(done.stdout)["command"] == ["echo", "hello"]


def test_closed_pipe_after_submit_dry_run_prints_no_error(work: Path) -> None:
    command = f"{sys.executable} -m clusterdp submit cfg.yaml --dry-run | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr.replace(done.stderr.partition("clusterdp: for")[1] or "\0", "").count("Traceback") == 0
    assert "Broken" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["--help", "submit cfg.yaml --dry-run", "status run"])
def test_full_disk_under_stdout_exits_1_with_a_message_and_no_traceback(work: Path, words: str) -> None:
    (work / "run/events").mkdir(parents=True)
    command = [sys.executable, "-m", "clusterdp", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said == "clusterdp: <stdout>: cannot be written: No space left on device. Print to another place."
    assert "Traceback" not in done.stderr


def test_shipped_configs_are_found_from_any_folder(work: Path) -> None:
    assert "digits" in run("configs").stdout
    assert yaml.safe_load(run("configs", "digits").stdout)["entry"] == "clusterdp.recipes.digits:main"
    for name in ("configs/digits.yaml", "digits"):
        assert run("submit", name, "--dry-run").returncode == 0
    refused = run("submit", "configs/nope.yaml").stderr
    assert "no example config of that name: " in refused
    assert "digits" in refused


def test_configs_prints_an_example_and_names_its_program_on_stderr(work: Path) -> None:
    printed = run("configs", "gan")
    assert yaml.safe_load(printed.stdout)["entry"] == "gan:main"
    assert printed.stderr == "clusterdp: gan.yaml: needs gan.py. `clusterdp configs gan --to DIR` copies both.\n"
    assert run("configs", "digits").stderr == ""
    assert "\nclusterdp configs NAME --to DIR " in run("configs").stdout


def test_configs_copies_an_example_with_its_program_and_prints_the_next_command(work: Path) -> None:
    copied = run("configs", "gan", "--to", "a/my copy")
    assert copied.stdout.splitlines() == [
        "wrote  a/my copy/gan.yaml",
        "wrote  a/my copy/gan.py",
        "",
        "Try it here: cd 'a/my copy' && clusterdp submit gan.yaml --cluster local",
    ]
    for name in ("gan.yaml", "gan.py"):
        assert (work / "a/my copy" / name).read_text() == find_config("gan").with_name(name).read_text()
    assert run("submit", "a/my copy/gan.yaml", "--dry-run").returncode == 2, "no name of a package has a space"
    shutil.move("a/my copy", "b")
    assert run("submit", "b/gan.yaml", "--dry-run").returncode == 0
    assert "entry: b.gan:main " in run("show", "b/gan.yaml").stdout
    assert sorted(os.listdir("b")) == ["gan.py", "gan.yaml"]


def test_configs_copies_a_program_of_two_examples_once(work: Path) -> None:
    run("configs", "linear", "--to", "x")
    assert run("configs", "sweep.yaml", "--to", "x").stdout.splitlines()[:2] == [
        "wrote  x/sweep.yaml",
        "kept   x/linear.py: it was there",
    ]
    assert run("configs", "digits", "--to", ".").stdout.startswith(
        "wrote  digits.yaml\n\nTry it here: clusterdp submit"
    )


@pytest.mark.parametrize("name", ["gan.yaml", "gan.py"])
def test_configs_overwrites_no_file_of_the_user(work: Path, name: str) -> None:
    (work / "x").mkdir()
    (work / "x" / name).write_bytes(b"\xffmine")
    refused = run("configs", "gan", "--to", "x")
    said = f"clusterdp: --to: x/{name} exists, and is not the file of the example. Name another folder.\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", said)
    assert os.listdir(work / "x") == [name]
    assert (work / "x" / name).read_bytes() == b"\xffmine"


ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # as Python sees many an old locale


def test_submit_dry_run_prints_utf_8_under_an_ascii_locale(work: Path) -> None:
    Path("cfg.yaml").write_text(CONFIG + "name: größe\n", encoding="utf-8")
    command = [sys.executable, "-m", "clusterdp", "submit", "cfg.yaml"]
    done = subprocess.run([*command, "--dry-run"], capture_output=True, env={**os.environ, **ASCII}, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert '#SBATCH --job-name="größe"' in done.stdout.decode()


def test_run_folder_name_unencodable_in_the_locale_is_a_one_line_error(work: Path) -> None:
    Path("cfg.yaml").write_text(CONFIG + "name: größe\n", encoding="utf-8")
    command = [sys.executable, "-m", "clusterdp", "submit", "cfg.yaml"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **ASCII}, check=False)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.count("\n") == 1 and "größe" in said and "Set LC_ALL=C.UTF-8." in said


def test_argument_with_invalid_utf_8_is_a_one_line_error(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", "cfg.yaml", os.fsdecode(b"name=gr\xf6sse"), "--dry-run"]) == 2
    assert capfd.readouterr().err == "clusterdp: b'gr\\xf6sse': is not UTF-8. Set the terminal to UTF-8.\n"


def test_child_processes_get_stdout_and_stderr_if_clusterdp_started_with_both_closed() -> None:
    runs = "from clusterdp.cli.streams import prepare; prepare(); import os; assert os.system('echo >&2 && echo') == 0"
    done = subprocess.run(["bash", "-c", f'"{sys.executable}" -c "{runs}" >&- 2>&-'], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_submit_with_closed_streams_succeeds_and_prints_into_no_file(work: Path, closed: str) -> None:
    command = f"{sys.executable} -m clusterdp submit cfg.yaml run_dir=r {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Submitted" not in "".join(
        file.read_text(errors="replace") for file in Path("r").rglob("*") if file.is_file()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [(["diff"], "RUN twice is missing."), (["diff", "a"], "RUN is missing."), (["submit"], "CFG.yaml is missing.")],
)
def test_missing_argument_is_named_in_the_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    assert said in capsys.readouterr().err
