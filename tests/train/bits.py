"""Trainings that end in the same bits on any number of ranks, and a digest of all that they end with."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from clusterdp.train import Amp, JobHandle, Trainer
from clusterdp.train.parallel.syncbn import GlooBatchNorm
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest

GLOBAL_BATCH, MICRO = 32, 4  # 8 micro-batches
SAMPLES = 2 * GLOBAL_BATCH + 18  # the last step of an epoch has 5 micro-batches, of 4, 4, 4, 4 and 2 samples
STEPS = 3  # in an epoch


class Mlp(nn.Sequential):
    """Of several buckets, whose sizes no number of ranks divides."""

    def __init__(self) -> None:
        layers = nn.Linear(48, 127), nn.Tanh(), nn.Dropout(0.2), nn.Linear(127, 65), nn.Tanh(), nn.Linear(65, 3)
        super().__init__(*layers)


class Cnn(nn.Module):
    """With BatchNorms of both kinds of averages, and one in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.norms = nn.Sequential(nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 3)
        self.norms[2].eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms(self.body(x.view(-1, 3, 4, 4)))
        out: torch.Tensor = self.head(nn.functional.dropout(x.mean((2, 3)), 0.1))
        return out


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(16, 2, 32, 0.1, "gelu", batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x.view(-1, 3, 16)).mean(1))
        return out


MODELS = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}


def train(
    job: JobHandle,
    record: str,
    model: str = "mlp",
    level: str = "O0",
    epochs: int = 2,
    fault: list[Any] | None = None,
    every_steps: int | None = None,
    by_hand: bool = False,
    micro: int = MICRO,
    threads: int = 1,
) -> None:
    """fault: (signal, the step in which it comes, the rank that gets it). by_hand: whether gradients are set to zero,
    and not freed. record: a folder."""
    shared_flags.MOST_STEPS = 1
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    net = job.wrap(MODELS[model](), bucket_cap_mb=0.02)
    adam = model == "transformer"
    optimizer: Any = torch.optim.AdamW(net.parameters(), 1e-2) if adam else torch.optim.SGD(net.parameters(), 0.01, 0.9)
    amp = Amp(level, job.device, init_scale=2.0**10, growth_interval=2)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 48, generator=generator)
    loader = job.loader((x, x[:, :3].argmax(1)), micro)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps(loader, epochs))
    state = {"model": net, "optimizer": optimizer, "amp": amp, "rate": scheduler}
    loop = job.loop(loader, state, epochs=epochs, every_steps=every_steps)
    for inputs, labels in loop:
        if fault == [fault and fault[0], loop.step, job.rank]:
            os.kill(os.getpid(), getattr(signal, f"SIG{fault[0]}"))
        with amp.autocast():
            loss = nn.functional.cross_entropy(net(inputs), labels)
        amp.backward(loss / loop.window)
        loop.log(loss=loss)
        if loop.window_ends:
            amp.step(optimizer, clip_norm=1.0)
            optimizer.zero_grad(set_to_none=not by_hand)
            scheduler.step()
    end = {name: part.state_dict() for name, part in (("model", net), ("optimizer", optimizer), ("amp", amp))}
    Path(record, f"end-{job.rank}").write_text(json.dumps({name: digest(state) for name, state in end.items()}))


def fits(job: JobHandle, record: str) -> None:
    """A Trainer."""
    torch.manual_seed(1)
    model, x = Mlp(), torch.randn(SAMPLES, 48, generator=torch.Generator().manual_seed(2))
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.05), job=job)
    trainer.fit((x, x[:, :3].argmax(1)), epochs=2, batch_size=MICRO)
    Path(record, f"end-{job.rank}").write_text(json.dumps(digest(model.state_dict())))


def counts_bytes(job: JobHandle, record: str) -> None:
    """Writes how many bytes this rank has sent, and how many its gradients of all steps have."""
    exchange, sent = dist.batch_isend_irecv, [0]

    def counted(messages: list[Any]) -> list[Any]:
        sent[0] += sum(each.tensor.nbytes for each in messages if each.op is dist.isend)
        return exchange(messages)

    dist.batch_isend_irecv = counted
    model = job.wrap(Mlp())
    loop = job.loop(job.loader(torch.randn(2 * GLOBAL_BATCH, 48), MICRO), {"model": model})
    for x in loop:
        (model(x).square().mean() / loop.window).backward()
        if loop.window_ends:
            model.zero_grad()
    size = sum(parameter.nbytes for parameter in model.parameters())
    Path(record, f"end-{job.rank}").write_text(json.dumps([sent[0], loop.step * size]))


class Odd(Mlp):
    """With what a mistaken program may do in its forward pass."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0
        if how in ("synced", "mode"):
            self.append(GlooBatchNorm(nn.BatchNorm1d(3)) if how == "synced" else nn.BatchNorm1d(3))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.how == "buffer":
            self.seen += x.sum()
        if self.how == "mode":
            self[-1].train(self.calls % 2 == 0)
        if self.how == "unused" and self.calls <= 2:
            return nn.functional.linear(self[3](self[0](x)), self[5].weight)
        return super().forward(x)


def mistaken(job: JobHandle, how: str) -> None:
    model: Any = Odd(how)
    options = {f"{how}{'_parameters' * (how == 'find_unused')}": True} if how in ("find_unused", "static_graph") else {}
    if how == "parts":
        model = nn.ModuleList([model])
    net = model if how == "unwrapped" else job.wrap(model, **options)
    if how == "hook":
        net.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = job.loader(torch.randn(GLOBAL_BATCH, 48), MICRO)
    for batch in (loop := job.loop(loader, {"model": net, "optimizer": optimizer})):
        loss = net(batch).square().mean()
        loss = loss if how == "no window" else loss / loop.window
        loss.backward(retain_graph=how == "twice")
        if how == "twice":
            (net(batch).square().mean() / loop.window).backward()
        if how == "no window" or loop.window_ends:
            optimizer.step()
            optimizer.zero_grad()
