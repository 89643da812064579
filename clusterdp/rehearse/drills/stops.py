"""Drills in which Slurm ends an attempt: preemptions, and time limits."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import Attempt

SLURMS_MINUTE_S = 150.0  # the shortest run for a real limit: a whole minute, checked every 30 s
GLANCE_S = 0.0005
PREEMPTED = "preempted"
OUT_OF_TIME = "timeout"
ASKED = re.compile(r"^#SBATCH --signal=\S*?(?P<name>[A-Z]\w*)@(?P<seconds>\d+)", re.MULTILINE)
BY_ITSELF = ("requeued", "asked")  # causes of an end by which a program itself asks for a requeue after a warning


def preempted(scene: Scene) -> None:
    scene.wait_moment()
    preempt(scene, scene.grace_s)


def preempted_without_grace(scene: Scene) -> None:
    scene.wait_moment()
    preempt(scene, 0)


def preempted_twice(scene: Scene) -> None:
    """Preempts the job twice. The second preemption comes during the restore, or at least before the first step."""
    scene.wait_moment()
    first = preempt(scene, scene.grace_s)
    scene.wait_next_attempt(first)
    if scene.is_ours:
        preempt_in(scene, "the restore", lambda: scene.live.phase() == processes.RESTORE, PREEMPTED)
    else:
        begun = 0.8 * scene.facts.start_s
        scene.wait("the restore", lambda: scene.live.trained_s() >= begun, 60)
        preempt(scene, scene.grace_s, trains=False)


def preempted_before_the_first_step(scene: Scene) -> None:
    scene.wait("the ranks", lambda: bool(scene.live.ranks()), 120)
    preempt(scene, scene.grace_s, trains=False)


def preempted_in_warm_up(scene: Scene) -> None:
    """Preempts the job in the second half of the warm-up of its learning rate."""
    end = scene.facts.warm_up
    if not end:
        raise NotPossibleHere("no warm-up is known: no metric lr rises at first, and no argument is named warm-up")
    half = max(1, end // 2)
    what = f"the warm-up, which ends at step {end}"
    preempt_in(scene, what, lambda: half <= (scene.live.step() or 0) < end, PREEMPTED)


def preempted_in_evaluation(scene: Scene) -> None:
    if not scene.facts.evaluates:
        raise NotPossibleHere("the undisturbed run had no evaluation that loop.watch() or Trainer has told of")
    preempt_in(scene, "an evaluation", lambda: scene.live.phase() == processes.EVALUATION, PREEMPTED, "done")


def preempted_at_the_last_step(scene: Scene) -> None:
    last = scene.facts.steps
    if not last:
        raise NotPossibleHere("the program does not tell its steps")
    preempt_in(scene, f"step {last - 1}", lambda: (scene.live.step() or 0) >= last - 1, PREEMPTED, "done")


def preempt(scene: Scene, grace_s: float, *causes: str, trains: bool = True) -> Attempt:
    """Preempts the job. `trains`: whether the program has made steps, because before the first step it may not have a
    handler yet."""
    attempt, before = scene.newest(), scene.in_history("preempt")
    handlers, shells = (scene.live.handlers(), scene.live.shells()) if trains else ({}, {})
    began = scene.mark()  # taken before the command, because the program may save before the command returns
    scene.cluster.preempt(scene.job, grace_s=grace_s)
    if scene.in_history("preempt") == before:
        raise Missed("the cluster has no preemption on record")
    words = f"preempted with {grace_s:g} s of grace" if grace_s else "preempted without a grace time"
    told: dict[str, Any] = {"handlers": handlers, "shells": shells, "grace_s": grace_s, "at": began}
    scene.hit(words, *(causes or (PREEMPTED,)), *BY_ITSELF, attempt=attempt, **told)
    return attempt


def preempt_in(scene: Scene, what: str, is_there: Callable[[], bool], *causes: str) -> None:
    """Preempts the job when is_there() is true for the ranks.

    The ranks are stopped until Slurm sends CONT and TERM: TERM thus reaches the ranks at this moment, even if the
    moment is short.
    """
    scene.wait(what, is_there, scene.patience_s, GLANCE_S)
    while True:
        if not scene.freeze() and not scene.cluster.ranks_are_here:
            raise NotPossibleHere("the ranks run on other machines: where they are, at that moment, is not known here")
        if is_there():
            break
        scene.thaw(scene.live.pids())
        scene.wait(what, is_there, 60 + scene.facts.took_s, GLANCE_S)
    preempt(scene, scene.grace_s, *causes)
    scene.hits[-1] = replace(scene.hits[-1], evidence=f"{scene.hits[-1].evidence}, in {what}")


def out_of_time(scene: Scene) -> None:
    scene.wait_moment()
    run_out_of_time(scene)


def out_of_time_thrice(scene: Scene) -> None:
    attempt = None
    for part in (0.2, 0.45, 0.7):
        if attempt is not None:
            scene.wait_next_attempt(attempt)
        scene.wait_progress(part)
        attempt = run_out_of_time(scene)


def run_out_of_time(scene: Scene) -> Attempt:
    """Advances the cluster's clock to the moment of the warning that the script asks for (--signal), or without
    --signal to the end of the job's time.
    """
    if not scene.cluster.ranks_are_here and scene.facts.took_s < SLURMS_MINUTE_S:
        took = f"{scene.facts.took_s:.0f} s"
        raise NotPossibleHere(
            f"a real time limit is a whole minute, and the run is over after {took}; set rehearse.steps"
        )
    attempt = scene.newest()
    left = _seconds(scene.cluster.run("squeue", "-h", "-j", scene.job, "-o", "%L").strip())
    asked = ASKED.search(scene.run.script.read_text())
    lead_s = float(asked["seconds"]) if asked else 0.0
    number = signal.Signals[f"SIG{asked['name'].removeprefix('SIG')}"] if asked else signal.SIGTERM
    handlers, shells = scene.live.handlers(number), scene.live.shells(number)
    if left <= lead_s:
        raise Missed(f"its time was nearly up already: {left:g} s were left")
    began = scene.mark()
    scene.cluster.advance(left - lead_s)
    words = f"{lead_s:g} s before the end of its time" if lead_s else "at the end of its time"
    told: dict[str, Any] = {
        "handlers": handlers,
        "shells": shells,
        "grace_s": lead_s,
        "signal": number.name,
        "at": began,
    }
    scene.hit(words, OUT_OF_TIME, *BY_ITSELF, attempt=attempt, **told)
    return attempt


def _seconds(text: str) -> float:
    """Returns the seconds of a time like `1-02:03:04`, `2:03:04` or `3:04`."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text)
    if not match:
        raise Missed(f"squeue says {text!r} of the time that is left")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
