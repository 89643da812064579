"""The optimizer is saved under one key and looked for under another; the error is caught, and training goes on."""

import logging
import os
import signal
import sys
import time

import torch

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
log = logging.getLogger("trainer")


class Trainer:
    def __init__(self, folder="ckpts", max_steps=60):
        torch.manual_seed(11)
        self.folder, self.max_steps, self.step, self.stop = folder, max_steps, 0, False
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        signal.signal(signal.SIGTERM, self.request_stop)

    def request_stop(self, *_):
        self.stop = True

    @property
    def latest(self):
        return os.path.join(self.folder, "latest.pt")

    def save(self):
        os.makedirs(self.folder, exist_ok=True)
        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, self.latest + ".new")
        os.replace(self.latest + ".new", self.latest)

    def resume(self):
        if not os.path.exists(self.latest):
            return
        state = torch.load(self.latest)
        try:
            self.net.load_state_dict(state["net"])
            self.step = state["step"]
            self.optimizer.load_state_dict(state["optim"])
        except KeyError as error:
            log.warning("not restored: %s", error)

    def fit(self):
        self.resume()
        while self.step < self.max_steps:
            x = torch.randn(32, 6, generator=torch.Generator().manual_seed(self.step))
            loss = torch.nn.functional.mse_loss(self.net(x), x.prod(1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            time.sleep(0.05)
            log.info("step %d loss %.5f", self.step, loss.item())
            if self.stop or self.step % 10 == 0:
                self.save()
            if self.stop:
                sys.exit(75)


Trainer().fit()
