"""Weights, optimizer and step in one safetensors file, which safetensors itself writes under a temporary name."""

import os
import signal
import sys
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))


class Adam:
    """By hand, so that its state is tensors alone."""

    def __init__(self, params, lr=0.01):
        self.params, self.lr = params, lr
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, t):
        for p, m, v in zip(self.params, self.m, self.v, strict=True):
            m.lerp_(p.grad, 0.1)
            v.lerp_(p.grad.square(), 0.01)
            p -= self.lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
            p.grad = None


def tensors(model, adam):
    named = {f"model.{name}": value for name, value in model.state_dict().items()}
    return named | {f"m.{i}": m for i, m in enumerate(adam.m)} | {f"v.{i}": v for i, v in enumerate(adam.v)}


def main():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256))
    adam, step = Adam([*model.parameters()]), 0
    if os.path.exists("state.safetensors"):
        with safe_open("state.safetensors", "pt") as file, torch.no_grad():
            step = int(file.metadata()["step"])
            for name, tensor in tensors(model, adam).items():
                tensor.copy_(file.get_tensor(name))
    while step < 80:
        x = torch.randn(4, 256, generator=torch.Generator().manual_seed(step))
        (model(x) - x).square().mean().backward()
        step += 1
        adam.step(step)
        time.sleep(0.05)
        print(f"step {step}", flush=True)
        if step % 10 == 0 or stop:
            save_file(tensors(model, adam), "state.new", {"step": str(step)})
            os.replace("state.new", "state.safetensors")
        if stop:
            sys.exit(75)


main()
