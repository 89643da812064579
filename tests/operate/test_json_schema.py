"""What --json prints is what json.schema.json says, key by key, in whatever state the run is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusterdp import cli
from clusterdp.batch.files.causes import CAUSES
from clusterdp.cli.arguments import VERBS, read_options
from clusterdp.operate.account.parts import NAMES
from clusterdp.operate.record.run_state import RunState
from tests.checkpoint.test_manifest import manifest, write
from tests.operate.account.test_account import preempted_and_killed
from tests.operate.builder import RunBuilder
from tests.operate.compare.test_diff import made
from tests.operate.conftest import FakeQueue
from tests.operate.sweep.test_sweep import SweepBuilder
from tests.operate.why.make_records import restore
from tests.operate.why.test_explanation import pending

SCHEMA = json.loads((resources.files("clusterdp.operate") / "json.schema.json").read_text())
OF_A_RUN = ("status", "why", "goodput", "checkpoint ls")


def strictly(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def check(verb: str, words: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the verb prints, once it is found to be as the schema says."""
    command = "status" if verb == "sweep status" else verb
    assert cli.main([*command.split(), *words.split(), "--json"]) == 0
    said = json.loads(capsys.readouterr().out, parse_constant=strictly)
    name = verb.removesuffix(" cfg.yaml").replace(" ", "_")
    validator = Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"})
    assert not [f"{error.json_path}: {error.message}" for error in validator.iter_errors(said)]
    return said


def waiting(builder: RunBuilder, queue: FakeQueue) -> None:
    pending(queue, "Resources", start="2023-11-20T08:00:00")
    builder.submitted()


def running(builder: RunBuilder, queue: FakeQueue) -> None:
    """It hangs, and one of its ranks is slow."""
    queue.answers("7|RUNNING|None|n[1-2]")
    builder.submitted().attempt(cpus=8, gpus=4).trained(1, 9, phase="warm-up").stopped(9).requeued("preempted")
    second = builder.attempt("7.1").restored(9).trained(10, 12)
    second.measured(step=13, loss="nan", confusion=[[1, 2], [3, 4]])
    second.files.avoid.write_text("n1\n")
    slow = {"rank": 3, "node": "n2", "more_ms": 12.0, "share": 0.31, "most_in": "data"}
    second.files.times.write_text(json.dumps({"steps": 100, "stragglers": [slow]}))
    builder.event("silent", "7.1", "batch", nodes="n2")
    about = {"ranks": [3], "nodes": "n2", "step": 13, "phase": "backward", "reason": "rank 3 on n2: step 13"}
    builder.event("hang", "7.1", "hang0", **about)
    for step, damaged in ((9, False), (12, True)):
        path = write(builder.run.checkpoints, manifest(step, "0123456789ab-0001", 1))
        if damaged:
            path.write_bytes(path.read_bytes()[:60])


def failed(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.run.config.unlink()
    builder.run.path.rmdir()
    restore("entry-shapes", builder.run.path)


def unknown_failure(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().printed("it went wrong\n").failed(exit=3)


def done(builder: RunBuilder, queue: FakeQueue) -> None:
    preempted_and_killed(builder)


def without_metrics(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted(entry="").attempt()
    queue.answers("7|COMPLETING|None|n1")


def cancelled(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 3)
    builder.cancelled().notice()


def forgotten(builder: RunBuilder, queue: FakeQueue) -> None:
    """No ending on record, and Slurm does not know the job any more."""
    builder.submitted().attempt().trained(1, 3).saved(2)


def silent(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 3)
    queue.answers(error="slurm_load_jobs error: Unable to contact slurm controller")


def empty(builder: RunBuilder, queue: FakeQueue) -> None:
    """Submit was killed."""


SITUATIONS = [waiting, running, failed, unknown_failure, done, without_metrics, cancelled, forgotten, silent, empty]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_json_of_each_run_verb_follows_the_schema_in_each_situation(
    situation: Any, builder: RunBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    situation(builder, queue)
    found = {verb: check(verb, "runs/digits", capsys) for verb in OF_A_RUN}
    (entry,) = check("list", "", capsys)
    found["list"] = entry
    states = {found[verb]["state"] for verb in ("status", "why", "goodput", "list")}
    assert len(states) == 1, "the verbs do not agree"
    of_both = found["status"].keys() & entry.keys()
    assert {key: found["status"][key] for key in of_both} == {key: entry[key] for key in of_both}


def test_json_of_a_sweep_follows_the_schema(
    elsewhere: Path, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.answers("7_2|RUNNING|None|n1", "7_3|PENDING|JobArrayTaskLimit|")
    SweepBuilder(elsewhere / "runs/s")
    ranked, stands = check("sweep", "runs/s", capsys), check("sweep status", "runs/s", capsys)
    assert (ranked["metric"], ranked["lower_is_best"]) == ("test_accuracy", False)
    assert [each["element"] for each in ranked["elements"]] == [2, 0, 1, 3]
    assert sorted(ranked["elements"], key=lambda each: int(each["element"])) == stands["elements"]
    check("list", "", capsys)
    for verb in OF_A_RUN:
        check(verb, "runs/s/2", capsys)
    queue.answers(error="slurm_load_jobs error: Unable to contact slurm controller")
    assert check("sweep", "runs/s", capsys)["why"]


def test_json_of_diff_follows_the_schema(tmp_path: Path, queue: FakeQueue, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "a", 0.1, "2.13.0", "1", {"train.py": "1", "old.py": ""}, 0.5)
    made(tmp_path / "b", 0.3, "2.12.0", "2", {"train.py": "2", "new.py": ""}, 0.25)
    check("diff", f"{tmp_path}/a {tmp_path}/b", capsys)
    assert check("diff", f"{tmp_path}/a {tmp_path}/a", capsys)["changed"] == []


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Each part of it that has keys."""
    if isinstance(schema, dict) and "required" in schema:
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from objects(part)


def test_json_schema_requires_every_key_and_allows_no_other() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    for schema in objects(SCHEMA):
        assert schema["required"] == list(schema["properties"])
    base = [SCHEMA["$defs"]["run"], SCHEMA["$defs"]["sweep_of_elements"]]  # closed by those that refer to them
    for schema in objects(SCHEMA):
        closed = [schema.get("additionalProperties"), schema.get("unevaluatedProperties")]
        assert (False in closed) == (schema not in base)
    assert SCHEMA["$defs"]["sweep_status"]["unevaluatedProperties"] is False


def test_json_of_check_follows_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\ntorch.save({}, 'model.pt')\n")
    Path("cfg.yaml").write_text("command: [python, train.py]\n")
    assert check("check cfg.yaml", "", capsys)["findings"]


def test_json_schema_has_every_verb_state_and_cause(capsys: pytest.CaptureFixture[str]) -> None:
    taking = {verb for verb in (*(each.name for each in VERBS), "checkpoint ls") if "--json" in help_of(verb, capsys)}
    # rehearsal.json has a test of its own: tests/rehearse/test_outcome.py.
    assert taking == {*OF_A_RUN, "list", "sweep", "diff", "check", "rehearse"}, "give it a schema, and a test here"
    assert SCHEMA["$defs"]["state"]["enum"] == [state.value for state in RunState]
    assert SCHEMA["$defs"]["cause"]["examples"] == list(CAUSES)
    assert list(SCHEMA["$defs"]["parts_s"]["properties"]) == list(NAMES)


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        read_options([*verb.split(), "--help"])
    return capsys.readouterr().out
