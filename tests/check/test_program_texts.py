"""Hints on the texts of 83 programs: none is false, and each fault that the text shows for sure has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.check.check import all_findings, program_of
from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.subject import Subject
from clusterdp.submission.render.script_spec import make_spec
from tests.check.program_texts import HINTS, PROGRAMS, Program

RESOURCES = {"nodes": 2, "gpus_per_node": 2, "tasks_per_node": 2, "cpus_per_task": 4, "time": "4:00:00"}


def hints_on(program: Program, folder: Path) -> set[str]:
    """Of HINTS."""
    for name, text in {"train.py": program.text, **program.files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    values = {"resources": RESOURCES, "command": "python train.py", **program.values}
    spec = make_spec(config.from_mapping(values), folder / "runs" / "x", folder, "python")
    subject = Subject(spec, {}, program=program_of(spec, {}, folder / "cfg.yaml"))
    said = [each.what for each in all_findings(subject, ClusterFacts(), set())]
    return {hint for hint, words in HINTS.items() if any(words in what for what in said)}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_check_hints_match_the_known_faults_of_each_program(program: Program, tmp_path: Path) -> None:
    assert hints_on(program, tmp_path) == program.hints
