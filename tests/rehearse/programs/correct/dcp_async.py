"""torch.distributed.checkpoint, saved in the background; the pointer is replaced when a save has ended on all ranks."""

import os
import shutil
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

warnings.filterwarnings("ignore")
asked = torch.zeros(1)


class Saver:
    """One save at a time, whose collectives are in a group of their own."""

    def __init__(self):
        self.group = dist.new_group(backend="gloo")
        self.pending, self.name = None, ""

    def begin(self, state, step):
        self.finish()
        self.name = f"step{step:05d}"
        if dist.get_rank() == 0:
            shutil.rmtree(f"dcp/{self.name}", ignore_errors=True)
            os.makedirs("dcp", exist_ok=True)
        dist.barrier()
        self.pending = dcp.async_save(state, checkpoint_id=f"dcp/{self.name}", process_group=self.group)

    def finish(self):
        """Waits for the save that is under way, and makes it the one to resume from."""
        if self.pending is None:
            return
        self.pending.result()
        dist.barrier()
        if dist.get_rank() == 0:
            with open("dcp/latest.tmp", "w") as file:
                file.write(self.name)
            os.replace("dcp/latest.tmp", "dcp/latest")
            for old in os.listdir("dcp"):
                if old.startswith("step") and old != self.name:
                    shutil.rmtree(f"dcp/{old}")
        dist.barrier()
        self.pending = None


def state_of(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}


def resumed(model, optimizer):
    """The step at which to go on."""
    if not os.path.exists("dcp/latest"):
        return 0
    with open("dcp/latest") as file:
        name = file.read()
    state = state_of(model, optimizer, 0)
    dcp.load(state, checkpoint_id=f"dcp/{name}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


def main():
    signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = Saver()
    for step in range(resumed(model, optimizer) + 1, 71):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        time.sleep(0.05)
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
        told = asked.clone()
        dist.all_reduce(told)
        if step % 10 == 0 or told.item():
            saver.begin(state_of(model, optimizer, step), step)
        if told.item():
            saver.finish()
            sys.exit(75)
    saver.finish()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "final.pt")


main()
