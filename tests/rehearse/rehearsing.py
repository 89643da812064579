"""A rehearsal of a program in a folder of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def job_of(program: str, ranks: int, config: Mapping[str, Any], python: Path = Path(sys.executable)) -> dict[str, Any]:
    """A config whose command is this program, unless it has another one."""
    job = {"resources": {"nodes": 1, "tasks_per_node": ranks}, **config}
    job["launch"] = {"env": {"OMP_NUM_THREADS": "1"}, **config.get("launch", {})}
    job["rehearse"] = {"grace_s": 5, **config.get("rehearse", {})}
    if not {"entry", "command", "script"} & set(job):
        job["command"] = [str(python), program]
    return job


def rehearse(
    folder: Path, job: Mapping[str, Any], drills: Iterable[str], python: Path = Path(sys.executable)
) -> dict[str, Any]:
    """rehearsal.json. AssertionError, with what it printed, if it was not made. folder: of the program. drills: none
    stands for all. python: of the first folder on PATH."""
    (folder / "job.yaml").write_text(json.dumps(job))
    only = [word for drill in drills for word in ("--only", drill)]
    command = [sys.executable, "-m", "clusterdp", "rehearse", "job.yaml", f"run_dir={folder}/runs/it", *only, "--json"]
    environ = {**os.environ, "PATH": f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
