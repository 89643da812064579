"""Started by torchrun: the agent passes SIGTERM on to its workers, and kills them a while later."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

PATH = "snapshot.pt"


class Trainer:
    def __init__(self):
        dist.init_process_group("gloo")
        self.global_rank = int(os.environ["RANK"])
        torch.manual_seed(0)
        self.model = DistributedDataParallel(torch.nn.Linear(200, 200))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.steps_run, self.stop = 0, torch.zeros(1)
        signal.signal(signal.SIGTERM, lambda *_: self.stop.fill_(1))
        if os.path.exists(PATH):
            snapshot = torch.load(PATH, map_location="cpu")
            self.model.module.load_state_dict(snapshot["MODEL_STATE"])
            self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
            self.steps_run = snapshot["STEPS_RUN"]

    def save_snapshot(self):
        if self.global_rank == 0:
            snapshot = {
                "MODEL_STATE": self.model.module.state_dict(),
                "OPTIMIZER_STATE": self.optimizer.state_dict(),
                "STEPS_RUN": self.steps_run,
            }
            torch.save(snapshot, f"{PATH}.tmp")
            os.replace(f"{PATH}.tmp", PATH)
        dist.barrier()

    def train(self, steps):
        while self.steps_run < steps:
            seed = 2 * self.steps_run + self.global_rank
            x = torch.randn(8, 200, generator=torch.Generator().manual_seed(seed))
            self.optimizer.zero_grad()
            (self.model(x) - x).square().mean().backward()
            self.optimizer.step()
            self.steps_run += 1
            time.sleep(0.05)
            print(f"[RANK {self.global_rank}] step {self.steps_run}", flush=True)
            told = self.stop.clone()
            dist.all_reduce(told)
            if self.steps_run % 10 == 0 or told.item():
                self.save_snapshot()
            if told.item():
                dist.destroy_process_group()
                sys.exit(75)


@record
def main():
    Trainer().train(70)
    dist.destroy_process_group()


main()
