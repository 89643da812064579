"""latest.json is written before the file that it names."""

import json
import os
import pathlib
import signal
import sys
import time

import torch

OUT = pathlib.Path("experiment")
POINTER = OUT / "latest.json"
term = False


def handle(sig, frame):
    global term
    term = True


def write_pointer(name):
    with open(OUT / "latest.json.tmp", "w") as f:
        json.dump({"checkpoint": name}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(OUT / "latest.json.tmp", POINTER)


def save(step, state):
    name = f"step_{step:05d}.pt"
    write_pointer(name)
    tmp = OUT / f".{name}.tmp"
    torch.save(state, tmp)
    os.replace(tmp, OUT / name)
    for old in sorted(OUT.glob("step_*.pt"))[:-2]:
        old.unlink()


def main():
    signal.signal(signal.SIGTERM, handle)
    OUT.mkdir(exist_ok=True)
    weights, velocity, step = torch.ones(300_000), torch.zeros(300_000), 0
    if POINTER.exists():
        state = torch.load(OUT / json.loads(POINTER.read_text())["checkpoint"])
        weights, velocity, step = state["weights"], state["velocity"], state["step"]
    while step < 60:
        noise = torch.randn(300_000, generator=torch.Generator().manual_seed(step))
        velocity = 0.9 * velocity + weights + noise
        weights = weights - 0.01 * velocity
        step += 1
        time.sleep(0.05)
        print(f"[step {step}] norm={weights.norm():.4f}", flush=True)
        if step % 10 == 0 or term:
            save(step, {"weights": weights, "velocity": velocity, "step": step})
        if term:
            sys.exit(75)


main()
