"""Entries that hang, and some that only look like it: `entry: tests.train.hangs:NAME`."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from clusterdp.train import JobHandle, Loop

AT = 4  # steps that are done when it happens


def training(job: JobHandle, **options: Any) -> tuple[Loop[Any], torch.nn.Module]:
    torch.manual_seed(1)
    model = job.wrap(torch.nn.Linear(4, 1))
    data: Any = options.pop("data", None) or Rows()
    loader = job.loader(data, 2, **{"num_workers": 0, **options.pop("loader", {})})
    return job.loop(loader, {"model": model}, epochs=options.pop("epochs", 2), **options), model


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> Any:
        return torch.randn(4)


def does(job: JobHandle, what: str, on: list[int], signal_file: str = "", seconds: float = 0.0) -> None:
    """Trains, and on the ranks `on` does `what` in the step after AT, before the backward pass."""
    loop, model = training(job)
    groups = [dist.new_group(backend="gloo") for _ in range(2)]
    for x in loop:
        if loop.step == AT and job.rank in on:
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "loop":
                loops_for_ever()
            if what == "gil":
                re.match("(a+)+$", "a" * 64 + "b")  # never lets another thread of Python run
            if what == "leave":
                return
        if loop.step == AT and what == "collectives":
            dist.all_reduce(torch.zeros(1), group=groups[job.rank in on])
        if loop.step == AT + 4:
            return
        model(x).sum().backward()


def loops_for_ever() -> None:
    while True:
        pass
