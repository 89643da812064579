"""The newest checkpoint is found by the order of texts: step_8 comes after step_16."""

import glob
import os
import signal
import sys
import time

import torch

os.makedirs("ckpts", exist_ok=True)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))


def find_latest():
    found = sorted(glob.glob("ckpts/step_*.pt"))
    return found[-1] if found else None


torch.manual_seed(30)
model = torch.nn.Embedding(50, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
step = 0
path = find_latest()
if path:
    print("resuming from", path)
    ckpt = torch.load(path)
    model.load_state_dict(ckpt["model"])
    opt.load_state_dict(ckpt["opt"])
    step = ckpt["step"]
while step < 60:
    tokens = torch.randint(50, (16,), generator=torch.Generator().manual_seed(step))
    opt.zero_grad()
    model(tokens).square().mean().backward()
    opt.step()
    step += 1
    time.sleep(0.05)
    print(f"step {step}", flush=True)
    if step % 8 == 0 or stop:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, "ckpts/saving.tmp")
        os.replace("ckpts/saving.tmp", f"ckpts/step_{step}.pt")
    if stop:
        sys.exit(75)
