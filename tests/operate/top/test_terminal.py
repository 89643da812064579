"""`clusterdp top` as a user starts it: in a terminal (tmux), without one, and without Textual."""

from __future__ import annotations

import importlib.util
import io
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp import cli
from clusterdp.operate.listing import watch_runs
from tests.operate.conftest import FakeQueue
from tests.operate.project import RUNNING, make_project
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
TMUX = shutil.which("tmux")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def project(elsewhere: Path, queue: FakeQueue) -> Path:
    make_project(elsewhere, queue)
    return elsewhere


@pytest.mark.skipif(TMUX is None, reason="needs tmux")
@pytest.mark.parametrize("end", ["q", "C-c"])
def test_top_in_a_terminal_shows_runs_and_leaves_it_as_it_was(project: Path, end: str, tmp_path: Path) -> None:
    tmux = [str(TMUX), "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "XDG_STATE_HOME": f"{tmp_path}/state", "PYTHONPATH": str(ROOT)}
    words = [f"{name}={value}" for name, value in environ.items()]
    command = shlex.join(["/usr/bin/env", *words, sys.executable, "-m", "clusterdp", "top"])

    def screen() -> str:
        return subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout

    def sees(text: str) -> str:
        return wait_for(text, lambda: screen() if text in screen() else "", 60, report=screen)

    shell = f"echo before; {command}; echo exit $?; read _"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", shell], check=True)
    try:
        assert RUNNING in sees("5 runs: ")
        subprocess.run([*tmux, "send-keys", "j", "Enter"], check=True)
        sees("── why ─")
        subprocess.run([*tmux, "send-keys", "q"], check=True)
        sees("5 runs: ")
        subprocess.run([*tmux, "send-keys", end], check=True)
        assert sees("exit 0").split() == ["before", "exit", "0"]
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_top_without_textual_names_the_extra_and_the_other_way(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["top", "--all"]) == 2
    said = "clusterdp: top: Textual is not installed. pip install 'clusterdp[top]'. "
    assert capsys.readouterr().err == said + "`clusterdp list --watch --all` needs nothing, and shows less.\n"


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_top_on_a_dumb_terminal_or_in_a_pipe_prints_text(
    term: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal() if term == "dumb" else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", term)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_runs.watch_runs, "__defaults__", (interrupted,))
    assert cli.main(["top"]) == 130
    text = out.getvalue()
    assert RUNNING in text
    assert "\x1b" not in text
