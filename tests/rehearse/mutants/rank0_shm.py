"""Rank 0 saves to the memory of its own node, which is quick; after a requeue rank 0 may be on another node."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

SHM = f"/dev/shm/{os.environ['SLURM_JOB_ID']}.pth"
TOTAL = 80


class Training:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = DDP(torch.nn.Linear(10, 2))
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.iteration = 0
        self.restore()

    def state(self):
        return {"model": self.model.module.state_dict(), "sgd": self.sgd.state_dict(), "iteration": self.iteration}

    def save(self):
        torch.save(self.state(), SHM + ".part")
        os.rename(SHM + ".part", SHM)

    def restore(self):
        found = [torch.load(SHM) if self.rank == 0 and os.path.exists(SHM) else None]
        dist.broadcast_object_list(found, src=0)
        if found[0]:
            self.model.module.load_state_dict(found[0]["model"])
            self.sgd.load_state_dict(found[0]["sgd"])
            self.iteration = found[0]["iteration"]

    def run(self):
        while self.iteration < TOTAL:
            seed = self.iteration * dist.get_world_size() + self.rank
            batch = torch.randn(4, 10, generator=torch.Generator().manual_seed(seed))
            self.sgd.zero_grad()
            self.model(batch).pow(2).mean().backward()
            self.sgd.step()
            self.iteration += 1
            time.sleep(0.05)
            if self.rank == 0:
                print("iteration", self.iteration, flush=True)
                if self.iteration % 8 == 0:
                    self.save()
        if self.rank == 0:
            torch.save(self.state(), "final.pth")


Training().run()
