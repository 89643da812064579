"""The handler saves by itself, with a barrier in it: the ranks are in other collectives when the signal comes."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


class Run:
    def __init__(self):
        dist.init_process_group("gloo")
        torch.manual_seed(17)
        self.rank, self.step = dist.get_rank(), 0
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.01)
        if os.path.exists("run.pt"):
            state = torch.load("run.pt")
            self.model.load_state_dict(state["model"])
            self.opt.load_state_dict(state["opt"])
            self.step = state["step"]
        signal.signal(signal.SIGTERM, self.on_sigterm)

    def on_sigterm(self, signum, frame):
        self.save()
        sys.exit(75)

    def save(self):
        dist.barrier()
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step}
            torch.save(state, "run.tmp")
            os.replace("run.tmp", "run.pt")
        dist.barrier()

    def train(self):
        while self.step < 40:
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(2 * self.step + self.rank))
            time.sleep(0.1 if self.rank else 0.5)  # rank 0 reads the data; the others wait for it in backward()
            self.opt.zero_grad()
            self.model(x).square().mean().backward()
            self.opt.step()
            self.step += 1
            if self.rank == 0:
                print("step", self.step, flush=True)
            if self.step % 10 == 0:
                self.save()


Run().train()
