"""Weights and optimizer are two files, each replaced by itself: a kill in between leaves two different steps."""

import os
import signal
import sys
import time

import torch
from safetensors.torch import load_file, save_file

NAME, OPTIMIZER = "model.safetensors", "optimizer.pt"


def replace(path, write):
    write(path + ".partial")
    os.replace(path + ".partial", path)


class Finetuning:
    def __init__(self):
        torch.manual_seed(19)
        self.model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.Tanh(), torch.nn.Linear(512, 128))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0

    def save(self):
        replace(NAME, lambda path: save_file(self.model.state_dict(), path))
        state = {"optimizer": self.optimizer.state_dict(), "step": self.step}
        replace(OPTIMIZER, lambda path: torch.save(state, path))

    def load(self):
        if os.path.exists(NAME):
            self.model.load_state_dict(load_file(NAME))
        if os.path.exists(OPTIMIZER):
            state = torch.load(OPTIMIZER)
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def train(self, steps):
        while self.step < steps:
            x = torch.randn(4, 128, generator=torch.Generator().manual_seed(self.step))
            self.optimizer.zero_grad()
            (self.model(x) - x).square().mean().backward()
            self.optimizer.step()
            self.step += 1
            time.sleep(0.05)
            print(f"step {self.step}", flush=True)
            if stop or self.step % 10 == 0:
                self.save()
            if stop:
                sys.exit(75)


stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
run = Finetuning()
run.load()
run.train(60)
