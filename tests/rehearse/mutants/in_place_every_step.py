"""One file, written in place after each step."""

import os
import time

import torch
import yaml

CONFIG = yaml.safe_load("""
model: {width: 700, depth: 3}
optim: {lr: 0.02}
steps: 60
checkpoint: state.pt
""")


def make_model(width, depth):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])


def train(cfg):
    model = make_model(**cfg["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["optim"]["lr"])
    start = 0
    if os.path.exists(cfg["checkpoint"]):
        saved = torch.load(cfg["checkpoint"])
        model.load_state_dict(saved["model"])
        start = saved["step"]
    for step in range(start, cfg["steps"]):
        x = torch.randn(4, cfg["model"]["width"], generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.05)
        print(f"{step + 1}/{cfg['steps']} done", flush=True)
        torch.save({"model": model.state_dict(), "step": step + 1}, cfg["checkpoint"])


train(CONFIG)
