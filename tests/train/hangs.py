"""Entries that hang, and some that only look like it: `entry: tests.train.hangs:NAME`."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from clusterdp.train import JobHandle, Loop, Trainer

AT = 4  # steps that are done when it happens


class Rows(Dataset[Any]):
    """hangs: reading the sixth batch of two never ends on this rank."""

    def __init__(self, hangs: bool = False):
        self.read, self.hangs = 0, hangs

    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        if self.hangs and self.read > 2 * AT:
            loops_for_ever()
        return torch.randn(4), torch.zeros(1)


def training(job: JobHandle, data: Any = None, **options: Any) -> tuple[Loop[Any], nn.Module]:
    torch.manual_seed(1)
    model = job.wrap(nn.Linear(4, 1))
    loader = job.loader(data or Rows(), 2, num_workers=options.pop("workers", 0), shuffle=False)
    return job.loop(loader, {"model": model, **options.pop("state", {})}, **options), model


def does(job: JobHandle, what: str, on: list[int]) -> None:
    """Trains; the ranks `on` do `what` in the step after AT, before the backward pass."""
    loop, model = training(job)
    for x, _ in loop:
        if loop.step == AT and job.rank in on:
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "loop":
                loops_for_ever()
            if what == "gil":
                re.match("(a+)+$", "a" * 64 + "b")  # lets no other thread of Python run
            if what == "return":
                return
            if what == "break":
                break
        if loop.step == AT and what == "one more" and job.rank in on:
            dist.all_reduce(torch.zeros(1))
        if loop.step == AT and what == "collectives":
            differ(job.rank in on)
        model(x).sum().backward()
    dist.barrier()


def records(job: JobHandle, on: list[int]) -> None:
    """Ranks of gloo with the pipe and the dump that NCCL's process group has, filled by torch's own recorder. The ranks
    `on` loop for ever in the step after AT."""
    dump, pipe = os.environ["TORCH_FR_DUMP_TEMP_FILE"], os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    os.mkfifo(f"{pipe}{job.rank}.pipe")
    threading.Thread(target=_record, args=(f"{dump}{job.rank}", f"{pipe}{job.rank}.pipe"), daemon=True).start()
    does(job, "loop", on)


def _record(dump: str, pipe: str) -> None:
    while True:
        with open(pipe, "rb") as requests:
            if requests.read():
                Path(dump).write_bytes(torch._C._distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]


def differ(first: bool) -> None:
    groups = [dist.new_group(backend="gloo") for _ in range(2)]
    if first:
        dist.all_reduce(torch.zeros(1), group=groups[0])
    else:
        dist.all_reduce(torch.zeros(1), group=groups[1])


def loops_for_ever() -> None:
    while True:
        pass


def reads(job: JobHandle, on: list[int]) -> None:
    """A worker of the loader never returns."""
    loop, model = training(job, Rows(job.rank in on), workers=1)
    for x, _ in loop:
        model(x).sum().backward()


def goes_backward(job: JobHandle, on: list[int]) -> None:
    """With a Trainer. A hook of the backward pass never returns."""
    net = nn.Linear(4, 1)

    def hook(gradient: torch.Tensor) -> None:
        if job.step == AT and job.rank in on:
            loops_for_ever()

    net.weight.register_hook(hook)
    trainer = Trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.0), job=job)
    trainer.fit(Rows(), batch_size=2, num_workers=0)


class Slow:
    """A part of the state that takes long to save."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def state_dict(self) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"one": 1}

    def load_state_dict(self, state: Any) -> None: ...


def takes_long(job: JobHandle, what: str, seconds: float) -> None:
    """Nothing is wrong with it. On rank 1 it takes longer than on the others, which wait."""
    mine = seconds * (1 + job.rank / 10)
    slow = {"slow": Slow(mine)} if what == "save" else {}
    loop, model = training(job, epochs=1, state=slow)
    for x, _ in loop:
        if what == "first step" and loop.step == 0:
            time.sleep(mine)
        model(x).sum().backward()
        if loop.step == AT:
            break
    if what == "evaluation":
        for _ in loop.watch([1]):
            time.sleep(mine)
    if what == "between epochs" and job.rank == 1:
        time.sleep(mine)
    if what == "save":
        loop.save()
    dist.barrier()


def steps(job: JobHandle, seconds: float, count: int = 20) -> None:
    """Steps that take so long each."""
    loop, model = training(job)
    for x, _ in loop:
        model(x).sum().backward()
        time.sleep(seconds)
        if loop.step == count:
            break
