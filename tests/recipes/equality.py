"""What the ranks of test_by_hand run: the same few steps of LeNet, by each of the synchronous ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from clusterdp.recipes import images
from clusterdp.recipes.images import LeNet
from clusterdp.train import JobHandle, StopSignal
from clusterdp.train.settings import WorkerSettings
from configs import by_hand
from configs.parameter_server import ParameterServer
from tests.train import programs

LR, MOMENTUM = 0.02, 0.9


def train(steps: int, global_batch: int) -> dict[str, list[float]]:
    """Rank 0's weights at the end of each way, and `spread`: the largest difference of another rank's from them."""
    group = programs.start()
    job = JobHandle(WorkerSettings(), group, StopSignal(), "local.1")
    data = images.load("digits").train
    answer = {}
    for name, way in (("ddp", _ddp), ("by_hand", _by_hand), ("server", _server)):
        torch.manual_seed(job.rank)  # each rank draws weights of its own, as in a job
        net = LeNet()
        model, step = way(job, net)
        loop = job.loop(job.loader(data, global_batch // job.world_size, drop_last=True), {})
        for pixels, labels in loop:
            net.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()
            step()
            if loop.step + 1 == steps:
                break
        weights = torch.cat([p.detach().flatten() for p in net.parameters()])
        others = weights.clone()
        torch.distributed.broadcast(others, src=0)
        answer[name] = weights.tolist()
        answer[f"{name} spread"] = [float((weights - others).abs().max())]
    job.flags.drain()
    group.close()
    return answer


def _ddp(job: JobHandle, net: nn.Module) -> tuple[nn.Module, Callable[[], Any]]:
    model = job.wrap(net)
    return model, torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM).step


def _by_hand(job: JobHandle, net: nn.Module) -> tuple[nn.Module, Callable[[], Any]]:
    by_hand.replicate(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    def step() -> None:
        by_hand.average_gradients(net.parameters())
        optimizer.step()

    return net, step


def _server(job: JobHandle, net: nn.Module) -> tuple[nn.Module, Callable[[], Any]]:
    by_hand.replicate(net)
    return net, ParameterServer(net, LR, MOMENTUM).step
