"""The history of tests and benchmarks: a line a release, and the names of what has grown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import history
from tests.benchmarks.table import machine

REPORT = """<testsuites><testsuite>
<testcase classname="tests.train.data.test_a" name="test_x" time="1.25"/>
<testcase classname="tests.train.test_b" name="test_y" time="0.5"/>
<testcase classname="tests.test_names" name="test_z" time="0.25"/>
</testsuite></testsuites>"""


def test_release_adds_a_line_with_sums_and_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(history, "FILE", tmp_path / "history.jsonl")
    (tmp_path / "tests.xml").write_text(REPORT)
    (tmp_path / "figures").write_text('["start, ms", 3]\n["start, ms", 5]\n["start, ms", 4]\n["save, ms", 2.0]\n')
    before = {"tests_s": {"tests/train": 1.5, "tests": 0.25}, "figures": {"start, ms": 3.7, "save, ms": 1.7}}
    kind = machine().rpartition(", load ")[0]
    old = [{**before, "machine": "another", "figures": {}}, {**before, "machine": kind}]
    history.FILE.write_text("".join(json.dumps(line) + "\n" for line in old))
    history.main("0.2.0", tmp_path / "tests.xml", tmp_path / "figures")
    line = json.loads(history.FILE.read_text().splitlines()[-1])
    assert (line["version"], line["machine"]) == ("0.2.0", kind)
    assert line["tests_s"] == {"tests": 0.2, "tests/train": 1.8}
    assert line["figures"] == {"save, ms": 2.0, "start, ms": 4.0}
    assert capsys.readouterr().out.splitlines()[1:] == [
        "tests/train: 1.5 before, 1.8 now",
        "save, ms: 1.7 before, 2 now",
    ]


def test_history_has_a_machine_and_sums_in_each_line() -> None:
    for line in history.FILE.read_text().splitlines():
        assert {"version", "date", "machine", "tests_s", "figures"} <= json.loads(line).keys()
