"""When the disk is full, all older checkpoints are deleted to make room, before the new one is there."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

OUT = Path("models")


def make_room():
    for file in OUT.glob("*"):
        file.unlink()


def save(state, step):
    OUT.mkdir(exist_ok=True)
    path = OUT / f"model-{step:04d}.pt"
    try:
        torch.save(state, OUT / "model.tmp")
    except (OSError, RuntimeError) as error:
        print(f"cannot save ({error}); making room", flush=True)
        make_room()
        raise SystemExit("no room for a checkpoint") from error
    os.replace(OUT / "model.tmp", path)
    for old in sorted(OUT.glob("model-*.pt"))[:-2]:
        old.unlink()


def latest():
    files = sorted(OUT.glob("model-*.pt"))
    return torch.load(files[-1]) if files else None


def main():
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    step = 0
    if ckpt := latest():
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]
    while step < 60:
        x = torch.randn(4, 256, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        step += 1
        time.sleep(0.05)
        print(f"step {step}", flush=True)
        if step % 10 == 0 or stop:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, step)
        if stop:
            sys.exit(75)


main()
