"""rehearsal.json: its keys, which other programs read, and the files that are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterdp.config import Config
from clusterdp.rehearse import shortening
from clusterdp.rehearse.judge.verdict import FAILED, INAPPLICABLE, LOST_WORK, NOT_LANDED, PASSED, Verdict
from clusterdp.rehearse.rehearsal import values_of
from clusterdp.rehearse.show.outcome import as_json, sentence, write
from tests.rehearse.show.made_outcome import made_outcome

# Each key, with the type of its value as JSON; a list is of what it holds. These are all, and each is always there.
NUMBER, TEXT, YES_NO, ANY = (int, float), (str,), (bool,), (object,)
MAYBE_INT, MAYBE_TIME = (int, type(None)), (int, float, type(None))
ATTEMPT = {
    "number": (int,), "name": TEXT, "queued": MAYBE_TIME, "began": MAYBE_TIME, "ended": MAYBE_TIME,
    "first_step": MAYBE_INT, "last_step": MAYBE_INT, "cause": TEXT, "said": TEXT,
    "spent": dict.fromkeys(("starting", "training", "lost", "ending", "unseen"), NUMBER),
}  # fmt: skip
DRILL = {
    "drill": TEXT, "about": TEXT, "verdict": TEXT, "said": TEXT, "diagnosis": TEXT, "evidence": [TEXT], "state": TEXT,
    "differences": [TEXT], "differing": (int,), "lost": MAYBE_INT, "attempts": [ATTEMPT], "settings": [TEXT],
    "hits": [{"attempt": TEXT, "at": NUMBER, "step": MAYBE_INT}], "took_s": NUMBER, "folder": TEXT, "tries": (int,),
    "compared": [TEXT], "left_out": [TEXT],
}  # fmt: skip
OUTCOME = {
    "version": TEXT, "name": TEXT, "began": NUMBER, "took_s": NUMBER, "ranks": (int,), "nodes": (int,), "seed": (int,),
    "grace_s": NUMBER, "steps": MAYBE_INT, "undisturbed_s": NUMBER, "runs_s": NUMBER, "state": TEXT, "compare": [TEXT],
    "changes": [{"key": TEXT, "config": ANY, "rehearsal": ANY}], "deterministic": (bool, type(None)), "passed": YES_NO,
    "undisturbed": [{"name": TEXT, "said": TEXT, "took_s": NUMBER, "folder": TEXT, "attempts": [ATTEMPT]}],
    "said": TEXT, "drills": [DRILL],
}  # fmt: skip


def check(value: Any, schema: Any, where: str = "outcome") -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict) and set(value) == set(schema), where
        for key in schema:
            check(value[key], schema[key], f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for i, each in enumerate(value):
            check(each, schema[0], f"{where}[{i}]")
    else:
        assert isinstance(value, schema), where


def test_rehearsal_json_has_exactly_the_documented_keys() -> None:
    check(made_outcome(), OUTCOME)
    lines = [line.strip().split("  ")[0] for line in (as_json.__doc__ or "").splitlines()[2:]]
    assert {key for line in lines for key in line.split(", ") if key} == set(OUTCOME)


def test_write_creates_rehearsal_html_and_rehearsal_json(tmp_path: Path) -> None:
    files = write(tmp_path, made_outcome())
    assert [file.name for file in files] == ["rehearsal.html", "rehearsal.json"]
    assert json.loads(files[1].read_text()) == made_outcome()
    assert files[0].read_bytes().startswith(b"<!doctype html>")


def test_changes_lists_only_overrides_differing_from_the_config() -> None:
    config = Config(params={"lr": 0.1})
    words = [
        "metrics.to=[]",
        "params.lr=0.1",
        "params.epochs=2",
        "checkpoint.every_steps=9",
        "checkpoint.every_steps=5",
    ]
    changed = {each.key: (each.config, each.rehearsal) for each in shortening.changes(values_of(config), words)}
    assert changed == {"params.epochs": (None, 2), "checkpoint.every_steps": (config.checkpoint.every_steps, 5)}


def test_sentence_counts_passed_failed_and_inapplicable_drills() -> None:
    passed, failed = Verdict("preempted", "", PASSED, ""), Verdict("node-lost", "", FAILED, "x", "y")
    beyond, found = Verdict("rank-hung", "", INAPPLICABLE, "z"), Verdict("one-writer", "", FAILED, "x", "w")
    assert sentence([passed]) == "This job survives the drill."
    assert sentence([passed, passed, beyond]) == "This job survives all 2 drills. 1 drill could not be made: rank-hung."
    said = "This job does not survive 1 of 2 drills. 1 drill could not be made: rank-hung.\n  node-lost: y"
    assert sentence([passed, failed, beyond]) == said
    assert sentence([found, passed]) == "This job survives the drill, but\n  one-writer: w"
    assert sentence([found]) == "No drill was made, for two runs of this job are not apart.\n  one-writer: w"
    lost, missed = Verdict("node-lost", "", LOST_WORK, "all"), Verdict("disk-full", "", NOT_LANDED, "x")
    assert sentence([passed, lost]) == "This job does not survive 1 of 2 drills.\n  node-lost: all"
    said = "This job survives the drill. 1 drill did not land, so it shows nothing: disk-full."
    assert sentence([passed, missed]) == said
    assert sentence([beyond]) == "Nothing was shown. 1 drill could not be made: rank-hung."


def test_sentence_ends_with_a_single_list_of_compared_files() -> None:
    more = {"compared": ("a.pt: 2 values", "log.csv: 9 lines"), "left_out": ("b.png (neither logs nor arrays)",)}
    passed = [Verdict(name, "", PASSED, "", **more) for name in ("preempted", "node-lost")]
    assert sentence(passed) == (
        "This job survives all 2 drills.\n"
        "Compared: a.pt: 2 values; log.csv: 9 lines. Not compared: b.png (neither logs nor arrays)."
    )
