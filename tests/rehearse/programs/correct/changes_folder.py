"""Makes a folder for the experiment, goes there, and uses paths relative to it."""

import argparse
import json
import os
import signal
import sys
import time

import torch


class Experiment:
    def __init__(self, name, lr):
        os.makedirs(f"experiments/{name}", exist_ok=True)
        os.chdir(f"experiments/{name}")
        self.stop = False
        signal.signal(signal.SIGTERM, self._term)
        torch.manual_seed(5)
        self.model = torch.nn.LSTM(16, 64)
        self.opt = torch.optim.Adam(self.model.parameters(), lr)
        self.step = 0

    def _term(self, *_):
        self.stop = True

    def load(self):
        if os.path.exists("weights.pt"):
            state = torch.load("weights.pt")
            self.model.load_state_dict(state["model"])
            self.opt.load_state_dict(state["opt"])
            self.step = state["step"]

    def save(self):
        state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step}
        torch.save(state, ".weights.pt")
        os.replace(".weights.pt", "weights.pt")

    def run(self, steps):
        self.load()
        while self.step < steps:
            x = torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(self.step))
            y, _ = self.model(x)
            self.opt.zero_grad()
            y.square().mean().backward()
            self.opt.step()
            self.step += 1
            time.sleep(0.05)
            print(json.dumps({"step": self.step, "loss": round(y.square().mean().item(), 6)}), flush=True)
            if self.step % 10 == 0 or self.stop:
                self.save()
            if self.stop:
                sys.exit(75)


parser = argparse.ArgumentParser()
parser.add_argument("--name", default="lstm")
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
Experiment(args.name, args.lr).run(steps=70)
