"""`clusterdp checkpoint` as a user types it. What the verbs find and write is tested in tests/operate/checkpoints."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clusterdp.checkpoint import Checkpointer
from tests.checkpoint.training import Counter


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two checkpoints in `saved`, and nothing else here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for step in (1, 2):
        counter = Counter()
        counter.state = {"weight": torch.full((3,), float(step))}
        Checkpointer(tmp_path / "saved", {"model": counter}).save(step)
    return tmp_path / "saved"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "clusterdp", "checkpoint", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL)


def on_terminal(*words: str, answer: str = "", **environ: str) -> str:
    """What a terminal gets to see."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"} | environ
    environment = {key: value for key, value in environment.items() if value}
    process = subprocess.Popen(command(*words), stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    os.write(controller, answer.encode())
    seen = b""
    try:
        while piece := os.read(controller, 65536):
            seen += piece
    except OSError:  # Linux's way of saying that nobody holds the terminal any more
        pass
    os.close(controller)
    assert process.wait() == 0, seen
    return seen.decode()


def test_checkpoint_verbs_print_no_escape_codes_into_a_pipe(saved: Path) -> None:
    for words, code in (
        (["ls", "saved"], 0),
        (["verify", "saved"], 0),
        (["diff", "saved", "1", "2"], 1),
        (["export", "saved", "--step", "1", "x.safetensors", "--only", "model"], 0),
        (["prune", "saved", "--keep-last", "1", "--dry-run"], 0),
    ):
        done = run(*words)
        assert (done.returncode, done.stderr) == (code, "")
        assert "\x1b" not in done.stdout and done.stdout.endswith("\n")
    assert Path("x.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ls", "nowhere"], 4),
        (["ls", "nope://x"], 2),
        (["verify", "saved@3"], 5),
        (["diff", "saved"], 2),
        (["export", "saved", "x.zip"], 2),
        (["prune", "saved", "--keep-last", "1"], 2),
        (["prune", "saved", "--keep-last", "0", "--yes"], 2),
    ],
)
def test_checkpoint_mistake_is_one_line_on_stderr_with_its_exit_code(saved: Path, words: list[str], code: int) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("clusterdp: ") and done.stderr.count("\n") == 1


def test_closed_pipe_ends_checkpoint_ls_silently_with_141(saved: Path) -> None:
    with subprocess.Popen(command("ls", "saved"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_checkpoint_verify_uses_colours_unless_no_color_is_set(saved: Path) -> None:
    assert "\x1b[32mgood" in on_terminal("verify", "saved", NO_COLOR="")
    assert "\x1b" not in on_terminal("verify", "saved", NO_COLOR="1")


def test_prune_asks_before_deleting_on_a_terminal(saved: Path) -> None:
    seen = on_terminal("prune", "saved", "--keep-last", "1", answer="n\n", NO_COLOR="1")
    assert "Delete them? [y/N]" in seen
    assert len(os.listdir(saved)) == 2
    on_terminal("prune", "saved", "--keep-last", "1", answer="y\n", NO_COLOR="1")
    assert os.listdir(saved) == ["step_00000002"]
