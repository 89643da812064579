"""Trains on the digits with a model that is split over ranks: microbatches through torch.distributed.pipelining.

    clusterdp submit configs/pipeline.yaml --cluster local     # 2 stages x 2 copies
    torchrun --nproc-per-node 2 configs/pipeline.py epochs=3

Ranks 0 and 1 hold the stages of the first copy, ranks 2 and 3 those of the second, and so on. Each copy reads its own
samples, and the ranks of a stage average their gradients. Each rank saves its own stage.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader

from clusterdp.errors import ConfigError
from clusterdp.recipes.digits import load_digits
from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle, ResumableSampler

STAGES = 2
MICROBATCHES = 4


class Stage:
    """This rank's part of the model, with its optimizer."""

    per_rank = True  # ranks save their own state

    def __init__(self, number: int, lr: float):
        halves = (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU()),
            nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
        )
        self.number, self.net = number, halves[number]
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])

    def step(self, mesh: DeviceMesh) -> None:
        """Steps the optimizer on the mean gradients of all copies."""
        for parameter in self.net.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=mesh.get_group("copy"))
            parameter.grad /= mesh.size(0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main(job: JobHandle, epochs: int = 6, batch_size: int = 32, lr: float = 0.1, step_delay_s: float = 0.0) -> float:
    """Returns the accuracy on held-out images. batch_size: images a step of one copy. step_delay_s: pause after each
    step."""
    if job.world_size % STAGES:
        raise ConfigError(
            f"resources: {job.world_size} ranks cannot hold copies of {STAGES} stages. Ask for {STAGES}n."
        )
    if batch_size % MICROBATCHES:  # gloo takes a shorter message than it expects, and the rest is of an earlier one
        raise ConfigError(f"params.batch_size: {batch_size} cannot be cut into {MICROBATCHES} equal microbatches.")
    copies = job.world_size // STAGES
    mesh = init_device_mesh(job.device.type, (copies, STAGES), mesh_dim_names=("copy", "stage"))
    torch.manual_seed(0)  # equal weights in all copies
    stage = Stage(mesh.get_local_rank("stage"), lr)
    stage.net.to(job.device)
    train, test = load_digits()
    copy = mesh.get_local_rank("copy")
    sampler = ResumableSampler(train, rank=copy, world_size=copies, seed=job.seed)  # deals the samples out to copies
    loader = DataLoader(train, batch_size, sampler=sampler, drop_last=True)
    part = PipelineStage(stage.net, stage.number, STAGES, job.device, group=mesh.get_group("stage"))
    schedule = ScheduleGPipe(part, MICROBATCHES, loss_fn=nn.functional.cross_entropy)

    loop = job.loop(loader, {"stage": stage}, epochs=epochs)
    for images, labels in loop:
        losses: list[torch.Tensor] = []
        if stage.number == 0:
            schedule.step(images.to(job.device))
        else:
            schedule.step(target=labels.to(job.device), losses=losses)
        stage.step(mesh)
        loss = sum(losses, torch.zeros(1)).detach() / MICROBATCHES  # zero in all stages but the last
        dist.all_reduce(loss, group=mesh.get_group("stage"))  # rank 0, which logs it, holds the first stage
        loop.log(loss=loss)
        time.sleep(step_delay_s)

    outputs = [test.tensors[0].to(job.device)]
    with torch.no_grad():
        for number in range(STAGES):
            outputs = [stage.net(outputs[0]) if number == stage.number else outputs[0]]
            dist.broadcast_object_list(outputs, group=mesh.get_group("stage"), group_src=number)
    accuracy = float((outputs[0].argmax(1) == test.tensors[1].to(job.device)).float().mean())
    digests = job.group.gather(digest(stage.net, stage.optimizer))
    job.log(test_accuracy=accuracy, digest=" ".join(digests[:STAGES]))
    if job.rank == 0:
        print(f"pipeline: test accuracy {accuracy:.4f} after {loop.step} steps", flush=True)
    return accuracy


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
