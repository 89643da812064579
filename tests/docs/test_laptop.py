"""docs/laptop.md, as a reader types it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

LONG = "clusterdp rehearse"  # takes minutes


def shape(line: str) -> str:
    """A line without what differs from run to run: the time before it, tokens and numbers."""
    line = re.sub(r"^\d\d:\d\d:\d\d +", "", line.strip())
    return re.sub(r"\d+", "#", re.sub(r"\b[0-9a-f]{12}\b", "#", line))


@pytest.mark.slow
def test_laptop_page_contains_the_output_of_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    work, printed, compared = tmp_path / "first", "", 0
    work.mkdir()
    for block in blocks(ROOT / "docs/laptop.md"):
        if block.language == "text":
            shapes = {shape(line.replace(str(work), "/home/me/first")) for line in printed.splitlines()}
            lines = block.text.splitlines()
            assert [line for line in lines if shape(line) not in shapes] == []
            compared += len(lines)
        commands = [line for line in block.text.splitlines() if line.startswith("clusterdp ")]
        for command in commands if block.language == "bash" else ():
            if not command.startswith(LONG):
                done = subprocess.run(shlex.split(command), cwd=work, env=environ, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                printed = done.stdout
    assert compared >= 10
