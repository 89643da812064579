"""An outcome of a rehearsal, made by hand: drills that passed, failed in several ways, and could not be made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from clusterdp.config import Config
from clusterdp.rehearse import shortening
from clusterdp.rehearse.drills.table import drill_of
from clusterdp.rehearse.judge.reference import Reference
from clusterdp.rehearse.judge.verdict import FAILED, INAPPLICABLE, PASSED, AttemptRow, HitRow, Verdict
from clusterdp.rehearse.rehearsal import Rehearsal, Screen, Undisturbed
from clusterdp.rehearse.run_spec import Facts
from clusterdp.rehearse.show.outcome import as_json
from clusterdp.rehearse.state import EndState

T0 = 1_700_000_000.0


def row(number: int, began: float, ended: float, said: str, lost: float = 0.0) -> AttemptRow:
    """began, ended: after T0. Three seconds of start, and one of an end."""
    spent = {"starting": 3.0, "training": ended - began - 4 - lost, "lost": lost, "ending": 1.0, "unseen": 0.0}
    first, last = 1 + 50 * (number - 1), 50 * number
    cause = "done" if said == "done" else "preempted"
    queued = T0 + began - 1
    return AttemptRow(number, f"7.{number - 1}", queued, T0 + began, T0 + ended, first, last, cause, said, spent)


def made_rehearsal(word: str = "plain") -> Rehearsal:
    """word: stands wherever others may have written what is shown."""
    done = row(1, 1, 21, "done")
    folder = f"/runs/{word}"
    twice = (row(1, 1, 11, f"preempted at step 50, {word}", lost=2), row(2, 12, 31, "done"))
    hit = HitRow("7.0", T0 + 9, 40)
    verdicts = [
        Verdict("preempted", "preempted with a grace time", PASSED, "back after 1 interruption, nothing lost",
                evidence=("attempt 1: preempted with 20 s of grace",), state="bit for bit", lost=0, hits=(hit,),
                attempts=twice, took_s=31, folder=f"{folder}/preempted",
                compared=("the checkpoint of step 100: 18 values", f"{word}.csv: 60 lines"),
                left_out=(f"{word}.png (neither logs nor arrays)",)),
        Verdict("rank-killed", "a rank is killed", FAILED, "it ended in another state: 40 values differ",
                f"the optimizer's state is not restored: {word}", ("attempt 1: rank 2 got SIGKILL",), "",
                (f"model.0.weight {word}", "optimizer.state.0.exp_avg differs by 3e-2"), 40, 12, (hit,), twice, (),
                31, f"{folder}/rank killed", 3),
        Verdict("rank-hung", "a rank hangs", FAILED, f"the job did not come back: failed: {word}", f"{word} " * 40,
                ("attempt 1: rank 0 got SIGSTOP",), lost=None, hits=(hit,), attempts=(row(1, 1, 900, word),),
                settings=drill_of("rank-hung").config, took_s=900, folder=f"{folder}/rank-hung"),
        Verdict("disk-full", "the disk is full during a save", INAPPLICABLE, f"no disk of its own: {word}",
                folder=f"{folder}/disk-full"),
        Verdict("beside-another", "two of it at a time", FAILED, f"both wrote {word}", f"absolute path: {word}"),
    ]  # fmt: skip
    config = Config(name=word, params={"epochs": 90, "data": word})
    config.resources.nodes = 2
    config.rehearse.params = {"epochs": 2, "data": f"{word}-small"}
    rehearsal = Rehearsal(config, Path(folder), Path("/"), (), cast(Screen, None), 20.0, 4, verdicts=verdicts)
    state = EndState({}, f"the checkpoint of step 100, {word}")
    rehearsal.reference = Reference(Path(folder, "undisturbed"), Facts(True, steps=100, took_s=20), state)
    rehearsal.compared = True
    rehearsal.runs = [
        Undisturbed("undisturbed", f"100 steps, {word}", 20, f"{folder}/undisturbed", (done,)),
        Undisturbed("undisturbed-again", "the same state, bit for bit", 20, f"{folder}/undisturbed-again", (done,)),
    ]
    rehearsal.overrides = shortening.for_all(config)
    return rehearsal


def made_outcome(word: str = "plain") -> dict[str, Any]:
    """As it is read from rehearsal.json."""
    found: dict[str, Any] = json.loads(json.dumps(as_json(made_rehearsal(word), T0, T0 + 600)))
    return found
