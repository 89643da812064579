"""A small training with all that must survive: dropout, batch norm, momentum or Adam, fp16 and a scaler."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import numpy
import torch
from torch import nn

from clusterdp.checkpoint.state.tree import Flattener, as_bytes


class Counter:
    """Anything with state: here, a position in the data."""

    def __init__(self, *, per_rank: bool = False):
        self.per_rank = per_rank
        self.state: dict[str, Any] = {"consumed": 0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


class Net(nn.Module):
    """Its layers are not registered in the order of their use: DDP's first buckets are not those it settles on."""

    def __init__(self, width: int):
        super().__init__()
        self.head = nn.Linear(width, 1)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.BatchNorm1d(width)
        self.first = nn.Linear(16, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.first(x)), 0.3)
        for layer in self.middle:
            x = layer(x).relu()
        out: torch.Tensor = self.head(x)
        return out


class Training:
    """Its batches come from torch's random numbers, its labels from numpy's and Python's: what is lost shows."""

    def __init__(self, *, seed: int, width: int = 32, adam: bool = False, ddp: bool = False):
        torch.manual_seed(seed)
        numpy.random.seed(seed)
        random.seed(seed)
        self.model = Net(width)
        if adam:
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, amsgrad=True)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 5])
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.position = Counter()
        self.loader = Counter(per_rank=True)
        self.net: nn.Module = self.model
        if ddp:
            self.net = nn.parallel.DistributedDataParallel(self.model)

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": self.net,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "position": self.position,
            "loader": self.loader,
        }

    def warm_up(self) -> None:
        """DDP regroups its buckets after the first backward pass, and gloo's sums follow the buckets."""
        for _ in range(2):
            self._backward()
        self.optimizer.zero_grad()

    def _backward(self) -> float:
        with torch.autocast("cpu", torch.float16):
            output = self.net(torch.randn(8, 16))
        target = torch.from_numpy(numpy.random.rand(8, 1)).float() + random.random()
        loss = (output.float() - target).square().mean()
        self.scaler.scale(loss).backward()
        return float(loss.detach())

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self._backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.position.state["consumed"] += 8
        self.loader.state["draw"] = random.random()
        return loss

    def digest(self) -> str:
        """Of every bit that the next step depends on."""
        return digest({name: thing.state_dict() for name, thing in self.state.items() if name != "model"}) + digest(
            [self.model.state_dict(), torch.get_rng_state(), random.getstate(), numpy.random.get_state()]
        )


def digest(tree: Any) -> str:
    flattener = Flattener()
    skeleton = flattener.flatten(tree, "tree")
    state = hashlib.blake2b(json.dumps(skeleton).encode())
    for name in sorted(flattener.tensors):
        state.update(name.encode() + bytes(as_bytes(flattener.tensors[name]).numpy()))
    return state.hexdigest()[:16]
