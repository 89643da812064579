"""Programs that know nothing of clusterdp, end to end: each fault is found and named, and an odd habit is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rehearse.programs.correct.table import CORRECT, DRILLS, IN_TEST_ALL
from tests.rehearse.programs.faults import FAULTS
from tests.rehearse.programs.odd import ODD
from tests.rehearse.rehearsing import HERE, job_of, rehearse

PROGRAM = HERE / "programs/train.py"
ELSEWHERE = "ELSEWHERE"  # in a program: a folder that is not its run's


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_rehearsal_finds_and_names_each_injected_fault(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    outcome = rehearsed(tmp_path, fault.edits, fault.config, fault.drill)
    row: dict[str, Any] = next((each for each in outcome["drills"] if each["drill"] == (fault.row or fault.drill)), {})
    assert row.get("verdict") == fault.verdict, row
    assert [words for words in fault.said if words not in row["diagnosis"]] == [], row["diagnosis"]
    assert outcome["passed"] is False


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ODD)
def test_unusual_but_correct_program_passes_its_drill(name: str, tmp_path: Path) -> None:
    odd = ODD[name]
    outcome = rehearsed(tmp_path, odd.edits, odd.config, odd.drill)
    [row] = outcome["drills"]
    assert row["verdict"] == "passed", (row["said"], row["diagnosis"])
    assert [words for words in odd.said if words not in row["said"]] == [], row["said"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", IN_TEST_ALL)
def test_correct_program_fails_no_drill(name: str, tmp_path: Path) -> None:
    program = CORRECT[name]
    shutil.copy(HERE / f"programs/correct/{name}.py", tmp_path)
    outcome = rehearse(tmp_path, job_of(f"{name}.py", program.ranks, program.config), DRILLS)
    assert outcome["passed"], outcome["said"]


BUSY = """
import json, os, signal, sys, time

state = json.load(open("last.json")) if os.path.exists("last.json") else {"step": 0, "w": [0.0] * 4000}
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while state["step"] < 60:
    state["w"] = [0.9 * x + state["step"] % 7 for x in state["w"]]
    state["step"] += 1
    time.sleep(0.05)
    print("step", state["step"], "loss", sum(state["w"]), flush=True)
    if state["step"] % 10 == 0 or stop:
        with open(NAME, "w") as file:
            json.dump(state, file)
        if NAME != "last.json":
            os.replace(NAME, "last.json")
    if stop:
        sys.exit(75)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "verdict"), [("last.tmp", "passed"), ("last.json", "failed")])
def test_verdicts_under_load_equal_those_on_a_calm_machine(name: str, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BUSY.replace("NAME", repr(name)))
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(processors)})  # the tests beside this one keep the others
    hogs = [subprocess.Popen([sys.executable, "-Sc", "while True: pass"]) for _ in range(25)]
    try:
        drills = ("preempted", "rank-killed", "killed-while-saving", "disk-full")
        outcome = rehearse(tmp_path, job_of("train.py", 1, {"rehearse": {"compare": ["last.json"]}}), drills)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        os.sched_setaffinity(0, processors)
    verdicts = {row["drill"]: (row["verdict"], row["diagnosis"] or row["said"]) for row in outcome["drills"]}
    wanted = dict.fromkeys(drills, "passed") | {"killed-while-saving": verdict, "disk-full": verdict}
    assert {drill: found for drill, (found, _) in verdicts.items()} == wanted, verdicts


def test_table_of_correct_programs_lists_every_program_file() -> None:
    programs = {path.stem for path in (HERE / "programs/correct").glob("*.py")} - {"__init__", "table"}
    assert programs == set(CORRECT)
    assert {*IN_TEST_ALL} <= programs


def rehearsed(folder: Path, edits: Sequence[tuple[str, str]], config: Mapping[str, Any], drill: str) -> dict[str, Any]:
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
    given = {**config, "launch": {"env": {"ELSEWHERE": str(elsewhere)}, **config.get("launch", {})}}  # of all nodes
    return rehearse(project, job_of("train.py", 2, given), [drill])
