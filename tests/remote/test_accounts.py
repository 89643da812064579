"""Accounts of all kinds behind a real sshd: login shells, other versions, no clusterdp, a ForceCommand, a slow home."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp import __version__
from clusterdp.errors import RemoteError
from clusterdp.remote.run_verb import HostSession
from tests.remote.conftest import Start, make_project
from tests.remote.sshd import Sshd

PACKAGE = Path(__file__).resolve().parents[2] / "clusterdp"


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line of an error, without its begin."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (RemoteError.exit_code, "", 1), done.stderr
    return done.stderr.removeprefix("clusterdp: cluster: ").rstrip()


def with_python(sshd: Sshd, python: str) -> None:
    sshd.profile(f"remote: {{python: {python}}}\n")


@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", "fish"])
def test_login_shell_of_any_kind_runs_the_verb(start_sshd: Start, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here: apt-get install {shell}")
    # As sshd starts a login shell: the user's line is the argument of -c.
    sshd = start_sshd(more=f'ForceCommand exec {path} -c "$SSH_ORIGINAL_COMMAND"')
    word = "a $HOME `x` 'y' \"z\" !1 \\n * ~"
    assert f"{word}: no such run folder" in sshd.on("status", word).stderr
    assert sshd.on("list").stdout.startswith("No runs of this folder")


def test_banner_of_a_login_shell_is_left_out(start_sshd: Start) -> None:
    noise = "echo Welcome to the cluster; printf 'no newline' ; echo Quota: 93% >&2"
    sshd = start_sshd(more=f'ForceCommand {noise}; exec bash -c "$SSH_ORIGINAL_COMMAND"')
    done = sshd.on("list", "--json")
    assert (json.loads(done.stdout), done.stderr) == ([], "")


def test_force_command_in_place_of_the_verb_is_an_error(start_sshd: Start) -> None:
    sshd = start_sshd(more="ForceCommand echo This account is for git alone.")
    said = one_line(sshd.on("list"))
    assert said.startswith("did not run clusterdp (exit 0), but says: 'This account is for git alone.'")


def test_missing_clusterdp_is_an_error_with_the_line_to_type(start_sshd: Start) -> None:
    sshd = start_sshd()
    with_python(sshd, python := "/usr/bin/python3")
    if subprocess.run([python, "-c", "import clusterdp"], capture_output=True, cwd="/").returncode == 0:
        pytest.skip("the system's Python has clusterdp")
    install = f"ssh cluster {python} -m pip install clusterdp=={__version__}"
    assert one_line(sshd.on("list")) == f"{python} has no clusterdp. Type: {install}"
    with_python(sshd, "/nowhere/python")
    said = "there is no /nowhere/python. Set remote.python: `clusterdp init --on cluster` finds one."
    assert one_line(sshd.on("list")) == said


def other_version(sshd: Sshd, old: str, new: str, file: str) -> None:
    """Installs a clusterdp there that differs in one line."""
    folder = sshd.home / "other" / "clusterdp"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("configs", "sbatch_templates"):
        (folder.parent / name).symlink_to(PACKAGE.parent / name)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    python = sshd.home / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with_python(sshd, "~/python")


def test_other_version_is_named_at_a_submit(start_sshd: Start) -> None:
    sshd = start_sshd()
    other_version(sshd, f'"{__version__}"', '"9.9.9"', "__init__.py")
    done = sshd.on("submit", "c.yaml", "--dry-run", cwd=make_project(sshd.here / "p"))
    assert done.returncode == 0
    assert done.stderr.startswith(f"clusterdp: cluster has clusterdp 9.9.9, and here is {__version__}\n")
    assert sshd.on("list").stderr == ""


def test_version_with_another_wire_is_refused(start_sshd: Start) -> None:
    sshd = start_sshd()
    other_version(sshd, "WIRE = 1 ", "WIRE = 2 ", "remote/wire.py")
    assert "they do not understand each other. Type: ssh cluster ~/python -m pip install" in one_line(sshd.on("list"))


def test_slow_home_delays_the_answer_alone(start_sshd: Start) -> None:
    sshd = start_sshd(more='ForceCommand sleep 3; exec bash -c "$SSH_ORIGINAL_COMMAND"')
    assert sshd.on("list").returncode == 0


def test_full_disk_there_leaves_the_project_as_it_was(start_sshd: Start, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk]).returncode:
        pytest.skip("needs root, to make a small disk")
    try:
        sshd = start_sshd()
        sshd.profile(f"remote: {{python: {sys.executable}, folder: {disk}/PROJECT}}\n")
        project = sshd.here / "big"
        project.mkdir()
        (project / "c.yaml").write_text("command: 'true'\n")
        (project / "big.py").write_bytes(os.urandom(2 << 20))
        done = sshd.on("submit", "c.yaml", cwd=project)
        assert done.returncode == RemoteError.exit_code
        assert "No space left on device" in done.stderr.splitlines()[-1]
        assert [path.name for path in (disk / "big").iterdir()] == [".clusterdp"]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH without Slurm, whose `sh -l` knows no more. This machine may have a Slurm of its own."""
    for name in ("bash", "tail", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    (tmp_path / "sh").write_text('#!/bin/sh\n[ "$1" = -lc ] && exit\nexec /bin/sh "$@"\n')
    (tmp_path / "sh").chmod(0o755)
    return tmp_path


def test_login_profile_is_asked_for_slurm_if_sbatch_is_missing(
    start_sshd: Start, slurm: dict[str, str], tools: Path
) -> None:
    sshd = start_sshd(there={"PATH": str(tools), "SHELL": "/bin/bash", "SLURM_CONF": ""})
    (sshd.home / ".bash_profile").write_text("".join(f"export {name}='{value}'\n" for name, value in slurm.items()))
    (sshd.here / "p").mkdir()
    (sshd.here / "p/c.yaml").write_text("command: 'true'\n")
    done = sshd.on("submit", "c.yaml", cwd=sshd.here / "p")
    assert done.stdout.startswith("Submitted job "), done.stderr


def test_init_proposes_settings_and_names_missing_programs(start_sshd: Start, tools: Path) -> None:
    sshd = start_sshd(there={"PATH": str(tools)})
    (sshd.home / "envs/torch/bin").mkdir(parents=True)
    python = sshd.home / "envs/torch/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    sshd.profile("")
    done = sshd.on("init")
    assert done.returncode == 0, done.stderr
    assert "Slurm: no sbatch on PATH of cluster" in done.stdout
    assert f"Python: {python}\nclusterdp: {__version__}, as here\n" in done.stdout
    assert sshd.on("list").returncode == 0


def test_session_answers_many_questions_through_one_ssh(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sshd.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(sshd.here)
    before = len(sshd.calls)
    session = HostSession("cluster")
    try:
        answers = [session.ask(["list", "--all"]) for _ in range(3)]
        with pytest.raises(RemoteError, match=r"^cluster: nowhere: no such run folder"):
            session.ask(["status", "nowhere"])
        assert session.ask(["list", "--all"]) == answers[0]
    finally:
        session.close()
    assert len(sshd.calls) - before == 2
    assert answers[0] == json.loads(sshd.on("list", "--all", "--json").stdout)
