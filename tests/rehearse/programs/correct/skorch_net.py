"""skorch: a callback saves module, optimizer and history after each epoch, and stops at SIGTERM."""

import os
import pickle
import signal
import sys
import time

import numpy as np
import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback

PATH = "net.pt"
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))


class Keeper(Callback):
    def on_epoch_end(self, net, **kwargs):
        time.sleep(0.2)
        print(f"epoch {len(net.history)} loss {net.history[-1, 'train_loss']:.5f}", flush=True)
        state = {
            "module": net.module_.state_dict(),
            "optimizer": net.optimizer_.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": len(net.history),
        }
        torch.save(state, PATH + ".tmp")
        os.replace(PATH + ".tmp", PATH)
        with open("history.pkl.tmp", "wb") as file:
            pickle.dump(net.history.to_list(), file)
        os.replace("history.pkl.tmp", "history.pkl")
        if asked:
            sys.exit(75)


class Regressor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 100), torch.nn.Dropout(0.1), torch.nn.Linear(100, 1))

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
x = np.random.default_rng(0).standard_normal((64, 20), dtype=np.float32)
net = NeuralNetRegressor(Regressor, optimizer=torch.optim.Adam, batch_size=16, train_split=None, verbose=0)
net.set_params(callbacks=[("keeper", Keeper())])
net.initialize()
done = 0
if os.path.exists(PATH):
    state = torch.load(PATH)
    net.module_.load_state_dict(state["module"])
    net.optimizer_.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    done = state["epoch"]
    for _ in range(done):
        net.history.new_epoch()
net.partial_fit(x, x.sum(1, keepdims=True), epochs=25 - done)
