"""The schedule of the learning rate is built anew after a resume, so the learning rate is warmed up a second time."""

import math
import os
import signal
import sys
import time

import torch

TOTAL, WARMUP, PEAK = 60, 15, 0.05


def lr_lambda(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


def save_checkpoint(path, **objects):
    torch.save(objects, path + ".tmp")
    os.replace(path + ".tmp", path)


def train():
    preempted = []
    signal.signal(signal.SIGTERM, lambda *_: preempted.append(True))
    torch.manual_seed(1)
    model = torch.nn.Linear(20, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK, momentum=0.9)
    done = 0
    if os.path.exists("checkpoint.pt"):
        checkpoint = torch.load("checkpoint.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        done = checkpoint["done"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
    for step in range(done + 1, TOTAL + 1):
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(0.05)
        print(f"step {step:3d} | loss {loss:.4f} | lr {scheduler.get_last_lr()[0]:.5f}", flush=True)
        if step % 10 == 0 or preempted:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint("checkpoint.pt", **states, scheduler=scheduler.state_dict(), done=step)
        if preempted:
            sys.exit(75)


train()
