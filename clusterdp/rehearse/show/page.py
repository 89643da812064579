"""rehearsal.html: the result of a rehearsal, in one file that needs no network, made from rehearsal.json's content."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from clusterdp.operate.html_page.bars import Axis, Bar, Mark, meaning_of
from clusterdp.operate.html_page.document import base_style, policy, template
from clusterdp.rehearse.judge.verdict import (
    BAD,
    BIT_FOR_BIT,
    FAILED,
    INAPPLICABLE,
    LOST_WORK,
    NOT_LANDED,
    PASSED,
    SHORT,
    WITHIN_SPREAD,
)
from clusterdp.wording import counted, duration, some_of

HERE = Path(__file__).parent
TONES = {PASSED: "good", FAILED: "bad", LOST_WORK: "bad", INAPPLICABLE: "dull", NOT_LANDED: "dull"}
LONG = 5.0  # a run longer than LONG undisturbed runs gets a time axis of its own, so that the other runs stay readable
Json = Mapping[str, Any]


@dataclass(frozen=True)
class RunBars:
    """The bars that show the attempts of a drill or of an undisturbed run."""

    told: Json  # the entry of the drill or run in the outcome
    bars: list[Bar]
    ticks: list[str]


@dataclass(frozen=True)
class DrillView(RunBars):
    """A drill on the page, with its verdict."""

    word: str  # the verdict
    tone: str  # the verdict's
    why: str  # the reason of a verdict other than passed
    state: str  # the result of comparing the end states
    commands: list[str]  # commands with which the user can find out more


def page_of(outcome: Json) -> bytes:
    """Returns the page as HTML. `outcome`: the result of outcome.as_json()."""
    usual = median(map(_length, outcome["undisturbed"]))
    lengths = [_length(each) for each in (*outcome["undisturbed"], *outcome["drills"])]
    common = max([length for length in lengths if length <= LONG * usual], default=0.0)
    undisturbed = [RunBars(each, *_bars(each, common)) for each in outcome["undisturbed"]]
    drills = [_drill(each, outcome, common) for each in outcome["drills"]]
    styles = [base_style() + (HERE / "page.css").read_text(encoding="utf-8")]
    page: str = template(HERE).render(
        outcome=outcome,
        said=outcome["said"].partition("\n")[0],
        facts=_facts(outcome),
        changes=[[each["key"], _value(each["config"]), _value(each["rehearsal"])] for each in outcome["changes"]],
        undisturbed=undisturbed,
        drills=drills,
        meaning=meaning_of([bar for view in (*undisturbed, *drills) for bar in view.bars]),
        styles=styles,
        policy=policy(styles),
    )
    return page.encode("utf-8", "replace")


def _facts(outcome: Json) -> list[tuple[str, str]]:
    steps, exact = outcome["steps"], outcome["deterministic"]
    source = some_of(outcome["compare"], 3) or outcome["state"]
    return [
        ("steps", f"{steps:,}" if steps else "not told by the program"),
        ("ranks", f"{outcome['ranks']} on {counted(outcome['nodes'], 'node')}"),
        ("grace time", f"{outcome['grace_s']:g} s"),
        ("end state", source if exact is None else f"{source}, {BIT_FOR_BIT if exact else WITHIN_SPREAD}"),
        ("deterministic", "not known" if exact is None else "yes" if exact else "no"),
        ("seed", str(outcome["seed"])),
        ("began", time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(outcome["began"]))),
        ("took", duration(outcome["took_s"])),
        ("clusterdp", outcome["version"]),
    ]


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _drill(told: Json, outcome: Json, common: float) -> DrillView:
    verdict = told["verdict"]
    return DrillView(
        told,
        *_bars(told, common),
        word=str(SHORT.get(verdict, verdict)),
        tone=TONES[verdict],
        why="" if verdict == PASSED else told["diagnosis"] or told["said"],
        state=told["state"] or (f"{counted(told['differing'], 'value')} differ" if told["differing"] else ""),
        commands=_commands(told, outcome) if verdict in BAD and told["folder"] else [],
    )


def _commands(told: Json, outcome: Json) -> list[str]:
    folder = shlex.quote(told["folder"])
    more = [f"clusterdp why {folder}", f"clusterdp logs {folder}"]
    if told["differing"] and not outcome["compare"]:
        more.append(f"clusterdp checkpoint diff {shlex.quote(outcome['undisturbed'][0]['folder'])} {folder}")
    return more


def _begin(told: Json) -> float:
    """Returns when the first attempt began, or when it began to wait."""
    return min((min(row["queued"] or row["began"], row["began"]) for row in _placed(told)), default=0.0)


def _length(told: Json) -> float:
    """Returns the seconds from the begin of the first attempt to the end of the last attempt."""
    return max((row["ended"] for row in _placed(told)), default=0.0) - _begin(told)


def _placed(told: Json) -> list[Json]:
    return [row for row in told.get("attempts", []) if row["began"] and row["ended"]]


def _bars(told: Json, common: float) -> tuple[list[Bar], list[str]]:
    """Returns the bars of the attempts, and the ticks of the time axis. `common`: the seconds of the axis that most
    runs share."""
    axis = Axis(_begin(told), max(common, _length(told)))
    if not axis.length:
        return [], []
    bars = []
    for row in _placed(told):
        spans = axis.spans(row["queued"], row["began"], row["spent"])
        ended, took = row["said"], duration(row["ended"] - row["began"])
        if row["last_step"] is not None:
            took = f"steps {row['first_step']} to {row['last_step']}, {took}"
        bars.append(Bar(row["number"], row["name"], spans, _marks(told, row["name"], axis), ended, took))
    return bars, axis.ticks


def _marks(told: Json, attempt: str, axis: Axis) -> list[Mark]:
    done = zip(told.get("hits", ()), told.get("evidence", ()), strict=True)
    return [Mark("hit", axis.percent(hit["at"]), words) for hit, words in done if hit["attempt"] == attempt]
