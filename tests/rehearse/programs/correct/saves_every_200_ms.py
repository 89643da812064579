"""Saves by the clock, five times a second, and keeps the last three."""

import os
import pathlib
import signal
import sys
import time

import torch

KEPT = pathlib.Path("snapshots")
halt = False


def on_term(*_):
    global halt
    halt = True


signal.signal(signal.SIGTERM, on_term)
torch.manual_seed(0)
layer = torch.nn.Linear(200, 200)
adam = torch.optim.Adam(layer.parameters())
step, saved = 0, time.monotonic()
KEPT.mkdir(exist_ok=True)
for path in sorted(KEPT.glob("*.pt"), reverse=True)[:1]:
    state = torch.load(path)
    layer.load_state_dict(state["layer"])
    adam.load_state_dict(state["adam"])
    step = state["step"]
while step < 300:
    x = torch.randn(4, 200, generator=torch.Generator().manual_seed(step))
    adam.zero_grad()
    (layer(x) - x).square().mean().backward()
    adam.step()
    step += 1
    time.sleep(0.02)
    print(f"step {step}", flush=True)
    if time.monotonic() - saved > 0.2 or halt or step == 300:
        state = {"layer": layer.state_dict(), "adam": adam.state_dict(), "step": step}
        torch.save(state, KEPT / "next")
        os.replace(KEPT / "next", KEPT / f"{step:05d}.pt")
        for old in sorted(KEPT.glob("*.pt"))[:-3]:
            old.unlink()
        saved = time.monotonic()
    if halt:
        sys.exit(75)
