"""A training with all that makes an exact resume hard, and a record of every batch and of all that it ends with."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from clusterdp.train import Amp, JobHandle
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest

SAMPLES = 176  # with 16 in a global batch, 11 batches an epoch: windows of 3, 3, 3 and 2
GLOBAL_BATCH = 16
WINDOW = 3


class Images(Dataset[tuple[int, torch.Tensor]]):
    """Augmented at random."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        noise = torch.rand(64) + random.random() + float(numpy.random.rand())
        return index, torch.full((64,), index / SAMPLES) + noise


class Net(nn.Module):
    """Of 0.1 MB, used in another order than it is registered in. Each rank has BatchNorm statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(128, 1)
        self.body = nn.Linear(128, 128)
        self.norm = nn.BatchNorm1d(128)
        self.stem = nn.Linear(64, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.stem(x)), 0.3)
        out: torch.Tensor = self.head(self.body(x.relu()).tanh())
        return out


def train(
    job: JobHandle, record: str, precision: str, workers: int, epochs: int, fault: list[Any] | None = None
) -> None:
    """fault: (TERM or KILL, the step in which it comes, the rank that gets it). record: a folder for what was done."""
    shared_flags.MOST_STEPS = 1  # a signal is agreed on two windows later, however quick they are
    model = job.wrap(Net(), bucket_cap_mb=0.03)
    ema = AveragedModel(copy.deepcopy(model.module), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    amp = Amp(precision, job.device, init_scale=2.0**8, growth_interval=3)
    loader = job.loader(Images(), GLOBAL_BATCH // job.world_size, num_workers=workers)
    state = {"model": model, "ema": ema, "optimizer": optimizer, "scheduler": scheduler, "amp": amp}
    loop = job.loop(loader, state, epochs=epochs, accumulate=WINDOW, every_steps=4)

    done = open(Path(record, f"batches-{job.rank}"), "a", buffering=1)  # noqa: SIM115
    for indices, x in loop:
        print(json.dumps([loop.step, digest([indices, x]), indices.tolist()]), file=done)
        if fault and fault[1:] == [loop.step, job.rank]:
            os.kill(os.getpid(), getattr(signal, f"SIG{fault[0]}"))
        with model.no_sync() if not loop.window_ends else nullcontext():
            with amp.autocast():
                loss = (model(x).float() - indices[:, None] / SAMPLES).square().mean() / loop.window
            amp.backward(loss)
        if loop.window_ends:
            amp.step(optimizer, clip_norm=1.0)
            optimizer.zero_grad()
            scheduler.step()
            ema.update_parameters(model.module)
    done.close()
    streams = [torch.get_rng_state(), random.getstate(), numpy.random.get_state()]
    own = {name: thing.state_dict() for name, thing in loop.state.items() if name not in ("model", "ema")}
    parameters = [list(net.parameters()) for net in (model, ema)]
    end = {"rank": digest([own, streams, [[p.detach() for p in net] for net in parameters]])}
    end["buffers"] = digest(dict(model.module.named_buffers()))  # each rank's own
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))
