"""A run of a rehearsal, in a process of its own: `python -m clusterdp.rehearse.one_run`, with a RunSpec on stdin.

Each line on stdout is a JSON object with the progress of the run. The last line has the RunResult. The fake cluster
ends with this process, however the process ends.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from clusterdp import config as config_module
from clusterdp.config import Config
from clusterdp.errors import ClusterdpError, ConfigError, SlurmError
from clusterdp.fakeslurm.core.processes import cpu_seconds
from clusterdp.fakeslurm.errors import FakeSlurmError
from clusterdp.operate.status.follow import Pace, RunUpdate, follow
from clusterdp.rehearse.clusters.drill_cluster import DrillCluster
from clusterdp.rehearse.clusters.job_cluster import shape_for
from clusterdp.rehearse.clusters.local_cluster import LocalCluster, shared_folders
from clusterdp.rehearse.clusters.slurm_cluster import SlurmCluster
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.drills.table import drill_of
from clusterdp.rehearse.observe.file_versions import FileVersions, folder_of_versions
from clusterdp.rehearse.observe.file_watch import FileWatch
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rehearse.observe.observer import Observer
from clusterdp.rehearse.observe.save_shape import is_state, pointed_at
from clusterdp.rehearse.run_spec import TOO_LONG, Missed, NotPossibleHere, RunResult, RunSpec, committed
from clusterdp.rundir import RunDir
from clusterdp.submission.plan import plan_for

PACE = Pace(poll_s=0.2, ask_s=1, late_s=0.2, settle_s=2, close_s=5)
SEE_BYTES = ("killed-while-saving", "disk-full")  # drills that need events of calls that write bytes
CUT_SHORT = "cut-short"
STUCK = "stuck"
IDLE_S = 30.0  # time before the limit in which a rank must have worked: else the job hangs, and is not only slow
MOST_STUCK = 4  # maximum number of attempts in a row without a first step, because a job may restart without limit


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the exit closes the cluster, which ends the job
    told = sys.stdout
    spec = RunSpec.from_json(json.loads(sys.stdin.read()))

    def tell(**fields: Any) -> None:
        told.write(json.dumps(fields) + "\n")
        told.flush()

    with contextlib.redirect_stdout(sys.stderr):
        try:
            result = run(spec, lambda step, doing: tell(step=step, doing=doing))
        except (ClusterdpError, FakeSlurmError, OSError) as error:
            tell(error=str(error))
            return 1
    tell(result=result.to_json())
    return 0


def run(spec: RunSpec, tell: Callable[[int | None, str], None]) -> RunResult:
    """Submits the job to its cluster, does the drill, and follows the run to its end."""
    if spec.drill and drill_of(spec.drill).only_here and spec.cluster != "local":
        return RunResult("", inapplicable="the ranks run on other machines", folder=spec.folder)
    folder, submit_dir = RunDir(Path(spec.folder)), Path(spec.submit_dir)
    overrides = [*spec.overrides, f"run_dir={json.dumps(str(folder.path))}", "after=null"]
    try:
        config = config_module.from_resolved(spec.values, overrides)
        plan = plan_for(config, folder, submit_dir, RunDir(Path(spec.code_of)) if spec.code_of else None)
    except ConfigError as why:
        if not spec.drill:
            raise
        return RunResult("", inapplicable=str(why), folder=spec.folder)  # an override of the drill does not fit
    with _cluster(spec, config, plan.spec.ranks_per_node) as cluster:
        began = time.monotonic()
        job, _ = plan.carry_out()
        cluster.submitted(str(job.id))
        dice = random.Random(f"{spec.seed}.{spec.name}")
        watches = config.restart.hang_after_s is not None
        live = LiveRun(folder, counter=spec.facts.counter, here=cluster.ranks_are_here)
        versions = FileVersions(live, folder_of_versions(folder.path))
        # An undisturbed run watches all files, because only its events show which files are checkpoints.
        counts = partial(is_state, folder, spec.facts.saves) if spec.drill else lambda path: True
        watch = FileWatch(live, counts, versions.heard)
        if cluster.file_events:
            cluster.file_events.step, cluster.file_events.heard = live.step, watch.heard
        scene = Scene(live, watch, cluster, str(job.id), spec.facts, spec.grace_s, dice, tell, watches, spec.thorough)
        observer = Observer(live) if not spec.drill else None
        if spec.drill:
            result = _disturb(scene, spec.drill)
            if result.inapplicable or result.missed:
                return replace(result, folder=spec.folder, took_s=time.monotonic() - began)
        ended = _to_the_end(spec, scene, began)
        files = watch.uses()  # called inside the `with` block, while the nodes still have their own /tmp
    versions.close()
    hits = tuple(scene.hits)
    events = cluster.file_events.events if cluster.file_events else []
    pointed = pointed_at(spec.facts.saves, events, folder)
    facts = observer.facts(ended.took_s, files, cluster.file_events) if observer else spec.facts
    return replace(
        ended,
        folder=spec.folder,
        hits=hits,
        facts=facts,
        files=committed(files, hits, pointed),
        unmade=scene.unmade,
        first_steps=scene.live.first_steps,
    )


def _cluster(spec: RunSpec, config: Config, ranks_per_node: int) -> DrillCluster:
    if spec.cluster == "local":
        above = str(Path(spec.folder).parent)  # contains all runs, also the run whose snapshot is used again
        shared = shared_folders(spec.values, above, spec.submit_dir)
        spare = 1 + config.resources.most_nodes - config.resources.least_nodes
        shape = shape_for(config, ranks_per_node, spare=spare, grace_s=spec.grace_s)
        return LocalCluster(shape=shape, shared=shared, sees_bytes=spec.drill in SEE_BYTES)
    return SlurmCluster(saves_at_term=spec.facts.ours)


def _disturb(scene: Scene, name: str) -> RunResult:
    try:
        drill_of(name).do(scene)
    except NotPossibleHere as why:
        return RunResult("", inapplicable=str(why))
    except Missed as why:
        return RunResult("", missed=str(why), hits=tuple(scene.hits))
    except (FakeSlurmError, SlurmError) as why:  # the job has just ended, so the cluster refused the fault
        return RunResult("", missed=str(why), hits=tuple(scene.hits))
    scene.doing = "the run goes on"
    return RunResult("")


def _to_the_end(spec: RunSpec, scene: Scene, began: float) -> RunResult:
    update = None
    first_step_at: float | None = None
    idle: tuple[float, tuple[str, int | None, int]] | None = None  # a time, and the work until then
    for update in follow(scene.run, PACE):
        step = scene.live.step()
        scene.tell(step, scene.doing or _state(update))
        scene.cluster.start_soon()
        now = time.monotonic()
        if step and first_step_at is None:
            first_step_at = now
        if spec.steps_for_s is not None and first_step_at is not None and now - first_step_at > spec.steps_for_s:
            total = update.history.total
            if step and total and total - step > step / 4:  # the remaining steps would take long
                return RunResult(CUT_SHORT, took_s=now - began)
        if spec.facts.steps and not spec.facts.ours and _is_stuck(scene, update):
            why = f"after the fault, {MOST_STUCK} attempts in a row ended before a first step"
            return RunResult(STUCK, why=why, took_s=now - began)
        if now - began > spec.limit_s - IDLE_S and idle is None:
            idle = now, _work(scene)
        if idle and now - began > spec.limit_s and now - idle[0] >= IDLE_S:
            if _work(scene) == idle[1]:
                why = f"its ranks have used no processor and made no step for {now - idle[0]:.0f} s"
                return RunResult(STUCK, why=why, took_s=now - began)
            return RunResult(TOO_LONG, why=f"it was not over after {now - began:.0f} s", took_s=now - began)
    if update is None:
        raise AssertionError("follow() yields at least once")
    state = update.status.state.value
    return RunResult(state, why=update.status.why, took_s=time.monotonic() - began)


def _work(scene: Scene) -> tuple[str, int | None, int]:
    """Returns the newest attempt, its step, and the processor time of its ranks in steps of 2 s: a rank that waits uses
    less in IDLE_S, and a rank that works more, also on a busy machine."""
    attempt = scene.live.attempt
    return attempt.name if attempt else "", scene.live.step(), round(cpu_seconds(scene.live.pids()) / 2)


def _is_stuck(scene: Scene, update: RunUpdate) -> bool:
    """Whether a program that prints its steps is stuck: several attempts in a row made no step."""
    ended = [each.name for each in update.history.attempts if each.ended is not None]
    hits = [ended.index(hit.attempt) for hit in scene.hits if hit.attempt in ended]
    last = ended[max(hits) + 1 :][-MOST_STUCK:] if hits else []
    return len(last) == MOST_STUCK and not any(name in scene.live.first_steps for name in last)


def _state(update: RunUpdate) -> str:
    if update.history.step is None:
        return "starts" if update.history.attempts else "waits"
    return "trains"


if __name__ == "__main__":
    sys.exit(main())
