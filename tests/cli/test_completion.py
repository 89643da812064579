"""TAB, as a shell asks: it runs clusterdp with the line so far in its environment, and reads file descriptor 8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.operate.builder import RunBuilder

BIN = Path(sys.executable).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.yaml").write_text("entry: train:main\nparams: {lr: 0.1, layers: 2}\n")
    (tmp_path / "notes.txt").write_text("")
    for name in ("first", "second"):
        RunBuilder(tmp_path / "runs" / name).submitted().attempt().trained(1, 3, lr=0.1)
    return tmp_path


def completed(line: str) -> set[str]:
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_COMP_WORDBREAKS": " =:", "_ARGCOMPLETE_IFS": "\n"}
    environ = os.environ | asked | {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" 8>&1 9>/dev/null', BIN / "clusterdp"], env=environ, capture_output=True, text=True
    )
    assert not done.stderr
    return {word.strip() for word in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("clusterdp st", {"stacks", "status", "stop"}),
        ("clusterdp submit ", {"train.yaml", "runs/", "state/"}),
        ("clusterdp submit train.yaml resources.no", {"resources.nodes=", "resources.nodelist="}),
        ("clusterdp submit train.yaml res", {"resources.", "restart."}),
        ("clusterdp submit train.yaml params.l", {"params.lr=", "params.layers="}),
        ("clusterdp submit train.yaml restart.requeue=", {"true", "false"}),
        ("clusterdp submit train.yaml --cluster ", {"auto", "slurm", "local"}),
        ("clusterdp status ", {"runs/first", "runs/second"}),
        ("clusterdp checkpoint ls runs/f", {"runs/first"}),
        ("clusterdp plot runs/first ", {"loss", "lr"}),
        ("clusterdp logs runs/first --attempt ", {"1", "all"}),
        ("clusterdp submit train.yaml --sweep params.l", {"params.lr=", "params.layers="}),
        ("clusterdp configs dig", {"digits"}),
        ("clusterdp configs digits --to ru", {"runs/"}),
        ("clusterdp show --explain checkpoint.keep_", {f"checkpoint.keep_{n}" for n in ("last", "every", "local")}),
    ],
)
def test_completion_offers_verbs_keys_values_and_files(folder: Path, line: str, words: set[str]) -> None:
    assert completed(line) - {"state/"} == words - {"state/"}


def test_partition_completion_reads_sinfo_and_is_empty_without_sinfo(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinfo = folder / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text(
        '#!/bin/sh\nfor p in gpu cpu* gpu; do echo "$p|up|idle|2|8|16000|(null)|(null)|infinite|1-infinite"; done\n'
    )
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sinfo.parent}:{os.environ['PATH']}")
    assert completed("clusterdp submit train.yaml resources.partition=") == {"gpu", "cpu"}
    sinfo.unlink()
    assert completed("clusterdp submit train.yaml resources.partition=") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    done = subprocess.run([BIN / "clusterdp", "completion", shell], capture_output=True, text=True, check=True)
    assert "clusterdp" in done.stdout
    assert {"bash": "complete ", "zsh": "compdef", "fish": "complete --command clusterdp"}[shell] in done.stdout
