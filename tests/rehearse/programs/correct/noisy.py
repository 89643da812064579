"""Its end is not the same twice: the order of some sums is drawn anew in each run. All of its state is saved."""

import os
import random
import signal
import sys
import time

import torch

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
noise = random.SystemRandom()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
if os.path.exists("noisy.pt"):
    state = torch.load("noisy.pt")
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
while step < 80:
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(step))
    x = x[noise.sample(range(64), 64)]  # as atomic additions on a GPU do it
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    time.sleep(0.05)
    print(f"step {step}", flush=True)
    if step % 10 == 0 or stop:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, "noisy.tmp")
        os.replace("noisy.tmp", "noisy.pt")
    if stop:
        sys.exit(75)
