"""Programs that know nothing of clusterdp, end to end: each fault is found and named, and an odd habit is none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rehearse.programs.faults import FAULTS
from tests.rehearse.programs.odd import ODD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).parent / "programs/train.py"
ELSEWHERE = "ELSEWHERE"  # in a program: a folder that is not its run's


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    outcome = rehearse(tmp_path, fault.edits, fault.config, fault.drill)
    row: dict[str, Any] = next((each for each in outcome["drills"] if each["drill"] == (fault.row or fault.drill)), {})
    assert row.get("verdict") == fault.verdict, row
    assert [words for words in fault.said if words not in row["diagnosis"]] == [], row["diagnosis"]
    assert outcome["passed"] is False


@pytest.mark.parametrize("name", ODD)
def test_an_odd_habit_is_no_fault(name: str, tmp_path: Path) -> None:
    odd = ODD[name]
    outcome = rehearse(tmp_path, odd.edits, odd.config, odd.drill)
    [row] = outcome["drills"]
    assert row["verdict"] == "passed", (row["said"], row["diagnosis"])
    assert [words for words in odd.said if words not in row["said"]] == [], row["said"]


def rehearse(folder: Path, edits: Sequence[tuple[str, str]], config: Mapping[str, Any], drill: str) -> dict[str, Any]:
    """What --json prints, for the program with these edits."""
    text = PROGRAM.read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(text.replace(ELSEWHERE, str(elsewhere)))
    (project / "run.sh").write_text(f"{sys.executable} train.py\necho ended\n")
    given = {"resources": {"nodes": 1, "tasks_per_node": 2}, **config}
    given["rehearse"] = {"grace_s": 5, **config.get("rehearse", {})}
    given["launch"] = {"env": {"ELSEWHERE": str(elsewhere)}, **config.get("launch", {})}  # shared by all nodes
    if "script" not in config:
        given["command"] = [sys.executable, "train.py"]
    (project / "job.yaml").write_text(json.dumps(given))
    words = ["rehearse", "job.yaml", f"run_dir={folder}/out", "--only", drill, "--json"]
    done = subprocess.run([sys.executable, "-m", "clusterdp", *words], cwd=project, capture_output=True, text=True)
    assert done.stdout, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
