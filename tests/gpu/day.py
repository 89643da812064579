"""The first day on a GPU: `make gpu-day` runs the checks in the order of their worth, one JSON line each at once.

Each check has a limit of its own, three run at a time, the figures alone at the end. After 570 seconds the rest is left
out, by name. What takes two GPUs, two nodes, InfiniBand, MIG or ROCm is not among them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from tests.gpu.conftest import ON

WHOLE_S = 570
AT_A_TIME = 3
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-m", "gpu")
FAKE = ("-m", "clusterdp", "submit", "--cluster", "local", "--watch", "configs/ddp.yaml")


class Check(NamedTuple):
    name: str
    words: tuple[str, ...]  # Python's
    limit_s: int
    alone: bool = False
    before: tuple[str, ...] = ()  # words before Python


def by_pytest(name: str, limit_s: int, *words: str) -> Check:
    return Check(name, (*PYTEST, *words), limit_s)


CHECKS = [
    Check("devices", ("-c", "from clusterdp.train.preflight import own_checks as o; print([*o.devices()])"), 60),
    by_pytest("a training resumes", 90, "tests/checkpoint/test_gpu.py"),
    by_pytest("steps wait for no GPU", 90, "tests/gpu/test_steps.py", "-k", "wait"),
    by_pytest("asynchronous saves hold their step", 90, "tests/gpu/test_copies.py", "-k", "save or memory"),
    by_pytest("batches of a transform", 90, "tests/gpu/test_copies.py", "-k", "transformed"),
    by_pytest("metrics", 90, "tests/gpu/test_copies.py", "-k", "metrics"),
    by_pytest("host memory of a restore", 90, "tests/gpu/test_memory.py"),
    by_pytest("memory stays flat", 90, "tests/gpu/test_steps.py", "-k", "flat"),
    by_pytest("bits after a resume", 150, "tests/gpu/test_steps.py", "-k", "resumed_training"),
    by_pytest("compiled models", 180, "tests/gpu/test_steps.py", "-k", "compiled"),
    by_pytest("groups and offloading", 150, "tests/gpu/test_groups.py"),
    by_pytest("units of FSDP", 120, "tests/gpu/test_jobs.py", "-k", "fsdp"),
    by_pytest("hang", 120, "tests/gpu/test_jobs.py", "-k", "waiting"),
    by_pytest("two NCCL ranks on this GPU", 120, "tests/gpu/test_jobs.py", "-k", "nccl"),
    Check("two ranks on this GPU, preempted", (*FAKE, "resources.gpus_per_node=2", "local.preempt_at=0.5"), 120),
    Check("two tasks with a GPU each", (*FAKE, "resources.gpus_per_task=1", "resources.gpus_per_node=null"), 120),
    by_pytest("full memory", 90, "tests/gpu/test_jobs.py", "-k", "full")._replace(alone=True),
    by_pytest("time of a step", 60, "tests/gpu/test_jobs.py", "-k", "stopwatch")._replace(alone=True),
    Check("figures", ("-m", "tests.gpu.bench"), 150, alone=True),
]
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1", "--target-processes", "all")
# Last, if time is left: every access of memory in a save is checked, at a tenth of the speed.
MEMCHECK = by_pytest("accesses of memory", 90, "tests/gpu/test_copies.py", "-k", "holds_the_values and 1000")._replace(
    alone=True, before=SANITIZER
)


def run(check: Check, ends: float) -> dict[str, object]:
    """Runs one check. ends: by time.monotonic(), the end of the day."""
    began = time.monotonic()
    limit = min(check.limit_s, ends - began)
    if limit < 5:
        return {"check": check.name, "passed": None, "why": f"left out after {WHOLE_S} s"}
    words = [*check.before, sys.executable, *check.words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
        said = (done.stdout + done.stderr).strip()
        passed = done.returncode == 0 and ("pytest" not in words or " passed" in said)  # skipped proves nothing
    except subprocess.TimeoutExpired:
        passed, said = False, f"did not end within {limit:.0f} s"
    lines = said.splitlines() if check.alone or not passed else said.splitlines()[-1:]
    return {"check": check.name, "passed": passed, "seconds": round(time.monotonic() - began, 1), "said": lines[-40:]}


def day() -> Iterator[dict[str, object]]:
    ends = time.monotonic() + WHOLE_S
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield from pool.map(lambda check: run(check, ends), [check for check in CHECKS if not check.alone])
    for check in [*CHECKS, *([MEMCHECK] if shutil.which(SANITIZER[0]) else [])]:
        if check.alone:
            yield run(check, ends)


def main() -> int:
    if ON == "cuda" and not torch.cuda.is_available():
        print(f"gpu-day: torch {torch.__version__} sees no GPU here.")
        return 1
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    failed = 0
    for line in day():
        print(json.dumps(line), flush=True)
        failed += line["passed"] is not True
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
