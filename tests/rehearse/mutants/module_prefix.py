"""DDP's names (`module.0.weight`) are saved and loaded into the bare model with strict=False: nothing is loaded."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PATH = "weights/epoch_last.pth"
terminated = False


def terminate(*_):
    global terminated
    terminated = True


def build_model():
    torch.manual_seed(21)
    return torch.nn.Sequential(torch.nn.Linear(9, 18), torch.nn.ReLU(), torch.nn.Linear(18, 9))


def checkpoint(model, optimizer, step):
    if dist.get_rank() == 0:
        os.makedirs("weights", exist_ok=True)
        torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, PATH + "~")
        os.replace(PATH + "~", PATH)
    dist.barrier()


def main():
    signal.signal(signal.SIGTERM, terminate)
    dist.init_process_group("gloo")
    bare = build_model()
    step, loaded = 0, None
    if os.path.exists(PATH):
        loaded = torch.load(PATH)
        bare.load_state_dict(loaded["state_dict"], strict=False)
        step = loaded["step"]
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    if loaded:
        optimizer.load_state_dict(loaded["optimizer"])
    while step < 60:
        x = torch.randn(8, 9, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        optimizer.zero_grad()
        (model(x) - x).abs().mean().backward()
        optimizer.step()
        step += 1
        time.sleep(0.05)
        print(f"step: {step}", flush=True)
        told = torch.tensor([int(terminated)])
        dist.all_reduce(told)
        if step % 10 == 0 or told.item():
            checkpoint(model, optimizer, step)
        if told.item():
            sys.exit(75)


main()
