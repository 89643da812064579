"""The mechanical part of the rules for test names (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent
MOST_WORDS = 12
NOT_FIRST = frozenset(
    "what who whoever whose of where one so it that they nobody nothing whatever which when if in on at by for from"
    " with without after before as is are not only neither either some something here how".split()
)
NEVER = frozenset("that who whose which what whatever where said told tells says tell say nobody nothing".split())
NEGATED_NOUN = re.compile("_(is|are)_(no|none|of|those_of|that_of)(_|$)")


def names() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), node.name)
        for path in sorted(ROOT.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def fault(name: str) -> str:
    words = name.removeprefix("test_").split("_")
    if len(words) > MOST_WORDS:
        return f"{len(words)} words, {MOST_WORDS} are allowed"
    if words[0] in NOT_FIRST:
        return f"begins with {words[0]}; begin with the unit, a noun"
    if found := NEVER.intersection(words):
        return f"has {min(found)}; name the noun, and use an adjective or another verb"
    return "has a negated noun, or `is of`" if NEGATED_NOUN.search(name) else ""


def test_test_names_follow_the_rules() -> None:
    assert [f"{file}: {name}: {wrong}" for file, name in names() if (wrong := fault(name))] == []


def test_fault_of_a_name_is_found() -> None:
    for bad in ("what_is_late", "port_is_no_port", "rank_that_failed", "error_is_said", "_".join(["word"] * 13)):
        assert fault(f"test_{bad}"), bad
    assert not fault("test_" + "_".join(["word"] * 12))
