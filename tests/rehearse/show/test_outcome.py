"""rehearsal.json: its keys, which other programs read, and the files that are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterdp.config import Config
from clusterdp.rehearse import shortening
from clusterdp.rehearse.rehearsal import values_of
from clusterdp.rehearse.show.outcome import as_json, write
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
}  # fmt: skip
OUTCOME = {
    "version": TEXT, "name": TEXT, "began": NUMBER, "took_s": NUMBER, "ranks": (int,), "nodes": (int,), "seed": (int,),
    "grace_s": NUMBER, "steps": MAYBE_INT, "undisturbed_s": NUMBER, "runs_s": NUMBER, "state": TEXT, "compare": [TEXT],
    "changes": [{"key": TEXT, "config": ANY, "rehearsal": ANY}], "deterministic": YES_NO, "passed": YES_NO,
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


def test_the_keys_are_these_and_its_docstring_names_them() -> None:
    check(made_outcome(), OUTCOME)
    lines = [line.strip().split("  ")[0] for line in (as_json.__doc__ or "").splitlines()[2:]]
    assert {key for line in lines for key in line.split(", ") if key} == set(OUTCOME)


def test_both_files_are_written(tmp_path: Path) -> None:
    files = write(tmp_path, made_outcome())
    assert [file.name for file in files] == ["rehearsal.html", "rehearsal.json"]
    assert json.loads(files[1].read_text()) == made_outcome()
    assert files[0].read_bytes().startswith(b"<!doctype html>")


def test_of_the_overrides_those_that_change_something_are_told() -> None:
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
