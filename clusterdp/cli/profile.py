"""`clusterdp profile`: runs some steps of a job, and prints how the steps used their time: as a table of the ranks, and
in words. With --find workers, numbers of loader workers are tried, and a table and the best number are printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from clusterdp.errors import ConfigError, RunError
from clusterdp.plainfile import read_plain


def profile(options: argparse.Namespace, path: str, send: Callable[..., int]) -> int:
    """Runs some steps, prints their times, and returns the run's exit code. `send` submits a plan as `submit` does, and
    follows the run."""
    from clusterdp import config
    from clusterdp.submission.plan import make_plan

    ours = [f"profile.steps={options.steps}", "local.preempt_at=null", "restart.max_crashes=0"]
    ours += [f"profile.find={options.find}"] if options.find else []
    loaded = config.load(path, [*options.overrides, *ours])
    if not loaded.entry:
        raise ConfigError("profile: only an entry: with job.loop() can be profiled. Use other tools for the rest.")
    plan = make_plan(loaded)
    options.watch = True
    code = send(plan, options)
    if code == 0:
        print("\n".join(["", *lines_of(plan.run)]))
    if options.find and (found := found_in(plan.run)):
        print("\n".join(["", *found]))
    return code


def lines_of(run: Any) -> list[str]:
    """Returns the lines of the report of the newest attempt that has measured its steps. Raises RunError if no attempt
    has measured steps."""
    for attempt in reversed(run.attempts()):
        if attempt.times.exists():
            report = json.loads(read_plain(attempt.times))
            traces = [f"Traced: {file}" for file in sorted(attempt.path.glob("trace-*"))]
            said = f"({report['steps']} steps; {attempt.times})"
            return [*report["table"], "", *report["diagnosis"], said, *traces]
    raise RunError(f"{run.path}: no steps were measured. Its entry must use job.loop(), for 6 steps or more.")


def found_in(run: Any) -> list[str]:
    """Returns the result of --find in the newest attempt that has such a result; empty if no attempt has a result."""
    files = [attempt.found for attempt in reversed(run.attempts()) if attempt.found.exists()]
    return list(json.loads(read_plain(files[0]))) if files else []
