"""The command line itself: words, exit codes, what is printed where. The verbs have tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import clusterdp
from clusterdp import cli
from clusterdp.cli import arguments

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


def test_version_and_help() -> None:
    assert run("--version").stdout == f"clusterdp {clusterdp.__version__}\n"
    assert run().stdout == run("--help").stdout
    for verb in ("submit", "status", "logs", "watch", "cancel", "resume", "show", "configs", "checkpoint", "fake"):
        assert f"    {verb} " in run("--help").stdout


def test_submit_says_job_and_run_folder_and_what_to_type_next(work: Path) -> None:
    done = run("submit", "cfg.yaml", "run_dir=r")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Submitted job 41: {work}/r\n")
    assert "clusterdp watch 41" in done.stdout


def test_values_and_options_may_come_in_any_order(work: Path) -> None:
    for words in (
        ["--dry-run", "cfg.yaml", "name=x"],
        ["cfg.yaml", "name=x", "--dry-run"],
        ["cfg.yaml", "--dry-run", "name=x"],
    ):
        assert "--job-name=x\n" in run("submit", *words).stdout


def test_a_word_too_many_is_refused(work: Path) -> None:
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
def test_a_mistake_is_one_line_on_stderr_with_its_exit_code(work: Path, words: list[str], code: int) -> None:
    before = sorted(work.iterdir())
    done = run(*words)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("clusterdp: ")
    assert done.stderr.count("\n") == 1
    assert sorted(work.iterdir()) == before


def test_debug_shows_the_traceback(work: Path) -> None:
    assert "Traceback" in run("--debug", "submit", "missing.yaml").stderr


def test_what_sbatch_refuses_is_exit_code_3(work: Path) -> None:
    (work.parent / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: nope' >&2; exit 1\n")
    done = run("submit", "cfg.yaml")
    assert done.returncode == 3
    assert "sbatch: error: nope" in done.stderr
    assert not Path("runs").exists()


def test_without_sbatch_nothing_is_trained_and_a_way_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_cannot_be_taken_back_wants_its_run_named(work: Path, words: list[str], command: str) -> None:
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


def test_show_is_yaml_with_the_source_of_each_value(work: Path) -> None:
    done = run("show", "cfg.yaml", "resources.nodes=3", "notify.on=[]")
    lines = {line.split("#")[0].strip(): line.split("#")[1].strip() for line in done.stdout.splitlines() if "#" in line}
    assert lines["nodes: 3"] == "command line"
    assert lines["time: '5'"] == "cfg.yaml:2"
    assert lines["backend: sbatch"] == "default"
    assert lines["'on': []"] == "command line"
    assert yaml.safe_load(done.stdout)["command"] == ["echo", "hello"]


def test_a_closed_pipe_is_no_error(work: Path) -> None:
    command = f"{sys.executable} -m clusterdp submit cfg.yaml --dry-run | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr.replace(done.stderr.partition("clusterdp: for")[1] or "\0", "").count("Traceback") == 0
    assert "Broken" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["--help", "submit cfg.yaml --dry-run", "status run"])
def test_a_full_disk_for_what_is_printed_is_one_line(work: Path, words: str) -> None:
    (work / "run/events").mkdir(parents=True)
    command = [sys.executable, "-m", "clusterdp", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said == "clusterdp: <stdout>: cannot be written: No space left on device. Print to another place."
    assert "Traceback" not in done.stderr


def test_the_configs_that_come_along_are_found_from_anywhere(work: Path) -> None:
    assert "digits" in run("configs").stdout
    assert yaml.safe_load(run("configs", "digits").stdout)["entry"] == "clusterdp.recipes.digits:main"
    for name in ("configs/digits.yaml", "digits"):
        assert run("submit", name, "--dry-run").returncode == 0
    refused = run("submit", "configs/nope.yaml").stderr
    assert "no example config of that name: " in refused
    assert "digits" in refused


def test_no_verb_is_undocumented() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    actions = [action for action in arguments.parser()._actions if action.choices]
    for verb in actions[0].choices or ():
        assert f"clusterdp {verb}" in readme, verb


ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # as Python sees many an old locale


def test_any_locale_prints_what_the_files_have(work: Path) -> None:
    Path("cfg.yaml").write_text(CONFIG + "name: größe\n", encoding="utf-8")
    command = [sys.executable, "-m", "clusterdp", "submit", "cfg.yaml"]
    done = subprocess.run([*command, "--dry-run"], capture_output=True, env={**os.environ, **ASCII}, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert '#SBATCH --job-name="größe"' in done.stdout.decode()


def test_a_folder_that_the_locale_cannot_name_is_one_line(work: Path) -> None:
    Path("cfg.yaml").write_text(CONFIG + "name: größe\n", encoding="utf-8")
    command = [sys.executable, "-m", "clusterdp", "submit", "cfg.yaml"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **ASCII}, check=False)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.count("\n") == 1 and "größe" in said and "Set LC_ALL=C.UTF-8." in said


def test_a_word_that_is_no_text_is_one_line(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", "cfg.yaml", os.fsdecode(b"name=gr\xf6sse"), "--dry-run"]) == 2
    assert capfd.readouterr().err == "clusterdp: b'gr\\xf6sse': is not UTF-8. Set the terminal to UTF-8.\n"


def test_a_command_that_we_run_has_the_streams_that_we_were_not_given() -> None:
    runs = "from clusterdp.cli.streams import prepare; prepare(); import os; assert os.system('echo >&2 && echo') == 0"
    done = subprocess.run(["bash", "-c", f'"{sys.executable}" -c "{runs}" >&- 2>&-'], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_reason_to_fail_nor_a_files_number(work: Path, closed: str) -> None:
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
def test_what_is_missing_is_named_once(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    assert said in capsys.readouterr().err
