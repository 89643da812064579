"""A comparison of check with Slurm in a process of its own, as it is to be an ordinary user's:
`python -m tests.e2e.judge_configs`.

Each line of stdin is a `resources:` as JSON. The line of the answer has check's findings, and what Slurm does with the
script of such a config."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterdp.check.check import check, subject_of
from clusterdp.config import Given, read
from clusterdp.slurm import commands
from tests.waiting import wait_for

FILE = Path("cfg.yaml")
AT_ONCE = ("None", "Priority", "Resources")  # reasons of a job that will start in a moment
# How long it must have had its reason before that is believed. The scheduler looks each second, and of a job in several
# partitions the reason may be that of the one that was tried last.
STAYS_S, AT_ONCE_STAYS_S = 1.5, 6.0


def judge(resources: Mapping[str, Any]) -> dict[str, Any]:
    FILE.write_text(json.dumps({"name": "x", "command": "true", "resources": {"time": 1, **resources}}))
    given = read(str(FILE))
    checked = check(given, FILE)
    said = [(each.level, each.key, each.what, each.why) for each in checked.findings]
    return {"asked": resources, "findings": said, "notes": checked.notes, "slurm": outcome(given)}


def outcome(given: Given) -> str:
    """`starts`, `refuses: WORDS`, or `waits: REASON`."""
    script = subject_of(given, FILE).script
    done = run("sbatch", "--parsable", "--output=/dev/null", given=script)
    if done.returncode != 0:
        return f"refuses: {' '.join(done.stderr.split())}"
    job = done.stdout.strip()
    try:
        began = time.monotonic()
        return wait_for(f"a word about {job}", lambda: _decided(job, time.monotonic() - began), 30, every_s=0.05)
    finally:
        run("scancel", job)
        wait_for(f"the end of {job}", lambda: not run("squeue", "--noheader", f"--jobs={job}").stdout.strip(), 30)


def _decided(job: str, after_s: float) -> str:
    state, reason = run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r").stdout.split(" ", 1)
    if state != "PENDING":
        return "starts"
    reason = reason.strip().split(",")[0]
    stays_s = AT_ONCE_STAYS_S if reason in AT_ONCE else STAYS_S
    return f"waits: {reason}" if after_s > stays_s else ""


def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environ = commands.clean_environ(os.environ)
    return subprocess.run(words, env=environ, input=given, capture_output=True, text=True)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(judge(json.loads(line))), flush=True)
