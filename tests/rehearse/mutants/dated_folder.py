"""Each start makes an output folder named for the time, and looks for a checkpoint in that one."""

import datetime
import os
import signal
import sys
import time

import torch
import yaml

torch.manual_seed(0)
stop = False


def sigterm(*_):
    global stop
    stop = True


class Experiment:
    def __init__(self):
        self.folder = datetime.datetime.now().strftime("outputs/%Y-%m-%d/%H-%M-%S")
        os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/config.yaml", "w") as file:
            yaml.safe_dump({"lr": 0.01, "steps": 60}, file)
        self.model = torch.nn.Linear(30, 30)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.step = 0

    @property
    def path(self):
        return f"{self.folder}/checkpoint.pt"

    def resume(self):
        if os.path.exists(self.path):
            state = torch.load(self.path)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, f"{self.path}.tmp")
        os.replace(f"{self.path}.tmp", self.path)

    def run(self):
        while self.step < 60:
            x = torch.randn(4, 30, generator=torch.Generator().manual_seed(self.step))
            self.optimizer.zero_grad()
            (self.model(x) - 1).square().mean().backward()
            self.optimizer.step()
            self.step += 1
            time.sleep(0.05)
            print(f"[{datetime.datetime.now():%H:%M:%S}] step {self.step}", flush=True)
            if self.step % 10 == 0 or stop:
                self.save()
            if stop:
                sys.exit(75)


signal.signal(signal.SIGTERM, sigterm)
experiment = Experiment()
experiment.resume()
experiment.run()
