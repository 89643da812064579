"""`clusterdp profile`: a short run of a job, and where its steps' time went, by rank and in words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from clusterdp.errors import ConfigError, RunError


def profile(options: argparse.Namespace, path: str, send: Callable[..., int]) -> int:
    """send: submits a plan as `submit` does, and follows it."""
    from clusterdp import config
    from clusterdp.launch.plan import make_plan

    ours = [f"profile.steps={options.steps}", "local.preempt_at=null"]
    loaded = config.load(path, [*options.overrides, *ours])
    if not loaded.entry:
        raise ConfigError(
            "profile: only an entry: that uses job.loop() can tell. Time another program by its own means."
        )
    plan = make_plan(loaded)
    options.watch = True
    code = send(plan, options, resumed=False)
    if code:
        return code
    print("\n".join(["", *lines_of(plan.run)]))
    return 0


def lines_of(run: Any) -> list[str]:
    """Of the newest attempt that has measured. RunError if none has."""
    for attempt in reversed(run.attempts()):
        if attempt.times.exists():
            report = json.loads(attempt.times.read_text())
            return [*report["table"], "", *report["diagnosis"], f"({report['steps']} steps; {attempt.times})"]
    raise RunError(f"{run.path}: no steps were measured. Does its entry use job.loop(), and for 6 steps or more?")
