"""The preflight of one node, for tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist

from clusterdp.train.preflight import meeting
from clusterdp.train.preflight.__main__ import check


def preflight(fault: str) -> list[str]:
    """Its lines. The last of the three nodes has the fault, in the second all-reduce: dies, hangs."""
    rank = int(os.environ["RANK"])
    environ = os.environ | {"SLURM_JOB_NODELIST": "n[1-3]"}
    meeting.SLOW_MB_PER_S = 0.0
    meeting.ALL_REDUCE_S = 5.0 if fault == "hangs" else 60.0
    meeting.LEAVE_S = 2.0 if fault else 60.0
    if fault and rank == 2:
        calls: list[Any] = []
        right = dist.all_reduce

        def all_reduce(*words: Any) -> Any:
            calls.append(words)
            if len(calls) == 2:
                os._exit(0) if fault == "dies" else signal.pause()
            return right(*words)

        dist.all_reduce = all_reduce
    with TemporaryDirectory() as folder:
        return [finding.line(f"n{rank + 1}") for finding in check(Path(folder), f"n{rank + 1}", environ)]
