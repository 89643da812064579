"""A resume in mid-epoch begins the epoch's samples from the first one, and goes on with the step's number."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, STEPS_PER_EPOCH = 3, 25


def setup():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    data = TensorDataset(torch.randn(200, 5), torch.randn(200, 1))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    model = DDP(torch.nn.Linear(5, 1))
    return sampler, DataLoader(data, batch_size=4, sampler=sampler), model


def main():
    flag = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: flag.fill_(1))
    sampler, loader, model = setup()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = 0
    if os.path.exists("run/last.pt"):
        last = torch.load("run/last.pt")
        model.module.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        step = last["step"]
    while step < EPOCHS * STEPS_PER_EPOCH:
        sampler.set_epoch(step // STEPS_PER_EPOCH)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            step += 1
            time.sleep(0.05)
            print(f"epoch {(step - 1) // STEPS_PER_EPOCH} step {step}", flush=True)
            told = flag.clone()
            dist.all_reduce(told)
            if dist.get_rank() == 0 and (step % 10 == 0 or told.item()):
                os.makedirs("run", exist_ok=True)
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, "run/last.pt.tmp")
                os.replace("run/last.pt.tmp", "run/last.pt")
            dist.barrier()
            if told.item():
                sys.exit(75)
            if step % STEPS_PER_EPOCH == 0:
                break


main()
