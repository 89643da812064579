"""ignite's Checkpoint, which DiskSaver writes atomically, and a handler that saves at SIGTERM and ends the engine."""

import glob
import os
import signal
import sys
import time

import torch
from ignite.engine import DeterministicEngine, Events
from ignite.handlers import Checkpoint, DiskSaver

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = [torch.randn(16, 10, generator=torch.Generator().manual_seed(i)) for i in range(20)]


def update(engine, x):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    return loss.item()


trainer = DeterministicEngine(update)
objects = {"trainer": trainer, "model": model, "optimizer": optimizer}
name = lambda engine, event: engine.state.iteration  # noqa: E731
keeper = Checkpoint(objects, DiskSaver("saved", require_empty=False), n_saved=3, global_step_transform=name)


@trainer.on(Events.ITERATION_COMPLETED)
def print_step(engine):
    print(f"iteration {engine.state.iteration}: loss {engine.state.output:.5f}", flush=True)
    if asked or engine.state.iteration % 10 == 0:
        keeper(engine)
    if asked:
        sys.exit(75)


def number(path):
    return int(path.rpartition("_")[2].removesuffix(".pt"))


if found := sorted(glob.glob("saved/checkpoint_*.pt"), key=number):
    Checkpoint.load_objects(objects, checkpoint=torch.load(found[-1], weights_only=False))
    for old in found[:-2]:
        os.remove(old)
if trainer.state.iteration < 4 * len(data):  # an engine that has finished would begin anew
    trainer.run(data, max_epochs=4)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "final.pt")
