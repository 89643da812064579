"""The outcome of a rehearsal: a sentence, rehearsal.json, and its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clusterdp import __version__
from clusterdp.rehearse.drills.table import NAMES
from clusterdp.rehearse.judge.compared import sentence_of
from clusterdp.rehearse.judge.verdict import BAD, INAPPLICABLE, NOT_LANDED, PASSED, Verdict
from clusterdp.rehearse.rehearsal import Rehearsal
from clusterdp.rehearse.show.page import page_of
from clusterdp.rundir import write_durably
from clusterdp.wording import counted, some_of


def sentence(verdicts: Sequence[Verdict]) -> str:
    """Returns a line on the drills, a line for each failure, and a line on the compared files.

    Verdicts on undisturbed runs do not count as drills.
    """
    drills = [each for each in verdicts if each.drill in NAMES]
    failed, passed = (sum(each.verdict in words for each in drills) for words in (BAD, (PASSED,)))
    rest = ""
    for verdict, did in ((INAPPLICABLE, "could not be made"), (NOT_LANDED, "did not land, so they show nothing")):
        if names := [each.drill for each in drills if each.verdict == verdict]:
            did = did.replace("they show", "it shows") if len(names) == 1 else did
            rest += f" {counted(len(names), 'drill')} {did}: {some_of(names)}."
    lines = [f"  {each.drill}: {each.diagnosis or each.said}" for each in verdicts if each.verdict in BAD]
    if failed:
        head = f"This job does not survive {failed} of {counted(failed + passed, 'drill')}."
    elif lines and not drills:
        head = "No drill was made, for two runs of this job are not apart."
    elif passed:
        head = f"This job survives {_all_of(passed)}{', but' if lines else '.'}"
    else:
        head = "Nothing was shown."
    return "\n".join([head + ("" if lines and not failed else rest), *lines, *_compared(drills)])


def _compared(drills: Sequence[Verdict]) -> list[str]:
    """Returns [a line on the files that were compared in passed drills], or [] if none were compared."""
    passed = [each for each in drills if each.verdict == PASSED and each.compared]
    what, left_out = (
        [*dict.fromkeys(words for each in passed for words in getattr(each, name))] for name in ("compared", "left_out")
    )
    return [sentence_of(what, left_out)] if what else []


def _all_of(passed: int) -> str:
    return f"all {passed} drills" if passed > 1 else "the drill"


def as_json(rehearsal: Rehearsal, began: float, ended: float) -> dict[str, Any]:
    """Returns rehearsal.json. Times are seconds since 1970, and durations (*_s) seconds.

    version, name       the version of clusterdp, and the name of the job
    began, took_s       the begin of the rehearsal, and its duration
    runs_s              the total time of its runs, from submit to end
    ranks, nodes        the numbers of the job's ranks and nodes
    seed, grace_s       the seed of random choices, and the grace time of preemptions
    steps, undisturbed_s  steps and duration of the undisturbed run; steps is null if the program prints none
    changes             the config changes in all runs: key, config, rehearsal
    state               the source of the end state
    compare             the files of the end state; empty if it is one of clusterdp's checkpoints
    deterministic       whether the two undisturbed runs have ended in the same bits; null if that is not known
    undisturbed         those two runs: name, said, took_s, folder, attempts (AttemptRow)
    passed, said        whether no drill has failed or lost work, and the same in words, with a line for each failure
    drills              a Verdict each
    """
    reference = rehearsal.reference
    if reference is None:
        raise AssertionError("it has run")
    facts = reference.facts
    return {
        "version": __version__,
        "name": rehearsal.config.name,
        "began": began,
        "took_s": ended - began,
        "runs_s": sum(rehearsal.runs_s),
        "ranks": rehearsal.ranks,
        "nodes": rehearsal.config.resources.least_nodes,
        "seed": rehearsal.seed,
        "grace_s": rehearsal.grace_s,
        "steps": facts.steps,
        "undisturbed_s": facts.took_s,
        "changes": [asdict(each) for each in rehearsal.changes],
        "state": reference.state.source,
        "compare": list(reference.patterns),
        "deterministic": reference.spread is None if rehearsal.compared else None,
        "undisturbed": [asdict(each) for each in rehearsal.runs],
        "passed": all(each.verdict not in BAD for each in rehearsal.verdicts),
        "said": sentence(rehearsal.verdicts),
        "drills": [each.to_json() for each in rehearsal.verdicts],
    }


def write(folder: Path, outcome: dict[str, Any]) -> list[Path]:
    """Writes rehearsal.html and rehearsal.json, and returns their paths."""
    files: dict[str, str | bytes] = {
        "rehearsal.html": page_of(outcome),
        "rehearsal.json": json.dumps(outcome, indent=1) + "\n",
    }
    for name, content in files.items():
        write_durably(folder / name, content)
    return [folder / name for name in files]
