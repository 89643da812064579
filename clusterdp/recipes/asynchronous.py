"""An asynchronous parameter server: nobody waits for the slowest rank, and gradients are of weights that have moved on.

    clusterdp submit configs/asynchronous.yaml --cluster local
    torchrun --nproc-per-node=3 -m clusterdp.recipes.asynchronous epochs=5

Rank 0 serves, the others work: each pulls the weights, computes a gradient, pushes it, and the server applies it at
once. The staleness of a gradient is how many updates by others lie between the weights that it was computed on and
those that it is applied to. It is never more than `max_staleness`: a gradient that would make another one, which is
still being computed, too old is held back until that one is there, and who computed it waits.

When to use it: hardly ever for dense models on like GPUs, where the synchronous form learns more from each gradient
and gives the same result each time. It pays where the ranks' speeds differ for good (machines of several generations,
samples of very uneven length, simulations that end when they end), and the model bears old gradients: little momentum,
a smaller learning rate. Its checkpoints are exact, no gradient is lost or applied twice. But which one comes first is
up to the machines, and so no two runs are the same.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from clusterdp.errors import ConfigError
from clusterdp.recipes.by_hand import replicate
from clusterdp.recipes.data import images as data_images
from clusterdp.recipes.lenet import LeNet
from clusterdp.recipes.parameter_server import check_updates
from clusterdp.recipes.results import accuracy
from clusterdp.recipes.staleness import StalenessBound
from clusterdp.recipes.wire import PUSH, SERVER, Wire
from clusterdp.train import JobHandle, ResumableSampler


def main(
    job: JobHandle,
    data: str = "digits",
    path: str | Path | None = None,
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 0.05,
    max_staleness: int = 4,
    step_delay_s: float = 0.0,
    straggler_delay_s: float = 0.0,
) -> float:
    """Returns the accuracy on the held-out images. straggler_delay_s: by which the last rank's steps are longer."""
    workers = job.world_size - 1
    if workers < 1:
        raise ConfigError("asynchronous: one rank serves, and none is left to work. Start two or more.")
    if max_staleness < workers - 1:
        raise ConfigError(
            f"params.max_staleness: {max_staleness} is too little for {workers} workers, which begin with the same "
            f"weights. Use {workers - 1} or more, or the synchronous clusterdp.recipes.parameter_server."
        )
    sets = data_images.load(data, path)
    model = LeNet(sets.channels, sets.classes).to(job.device)
    replicate(model)
    criterion = nn.CrossEntropyLoss()
    wire = Wire(model)
    server = Server(model, lr, StalenessBound(max_staleness), wire)
    # The workers share the samples. The server looks at none, but its loop is as long as theirs.
    mine = max(0, job.rank - 1)
    share = ResumableSampler(sets.train, rank=mine, world_size=workers, seed=job.seed, drop_last=True)
    loader = DataLoader(sets.train, batch_size, sampler=share, drop_last=True, generator=torch.Generator())

    loop = job.loop(loader, {"server": server}, epochs=epochs)
    for images, labels in loop:
        if job.rank == SERVER:
            check_updates(server.updates, loop.step * workers)
            loop.log(loss=server.serve(workers), stalest=max(server.staleness))
        else:
            wire.pull()
            time.sleep(step_delay_s + (straggler_delay_s if job.rank == workers else 0.0))
            model.zero_grad()
            loss = criterion(model(images.to(job.device)), labels.to(job.device))
            loss.backward()
            wire.push(loss)

    if job.rank == SERVER:
        check_updates(server.updates, loop.step * workers)
    replicate(model)  # the server's: those of who worked are older
    reached = accuracy(job, loop, model, sets.test)
    counts = {str(stale): count for stale, count in sorted(server.staleness.items())}
    job.log(test_accuracy=reached, updates=server.updates, staleness=counts)
    if job.rank == SERVER:
        print(
            f"asynchronous: test accuracy {reached:.4f} after {server.updates} updates, staleness {counts}", flush=True
        )
    return reached


class Server:
    """On rank 0. A step of the loop is as many updates as there are workers, from whomever.

    Why no gradient is under way at a checkpoint: it is made where all ranks have done the same number of steps, n. Each
    worker has then pushed n gradients, and the server has applied n for each of them, so all.

    Why the loop's words cannot stop it: a worker waits for the server only within a step, and waits for words only
    between two. If the server, after n steps, waits for a word, then no worker can have passed n, for the same word;
    and together they have done as many as n each. So all have done n, and nobody owes that word.
    """

    per_rank = True  # what rank 0 saves is nobody else's

    def __init__(self, model: nn.Module, lr: float, bound: StalenessBound, wire: Wire):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.bound = bound
        self.wire = wire
        self.held: dict[int, torch.Tensor] = {}  # gradients that wait for an older one, by worker
        self.asking: set[int] = set()  # workers of such a gradient, who want new weights
        self.staleness: Counter[int] = Counter()  # how many updates were how stale
        self.rank = dist.get_rank()

    @property
    def updates(self) -> int:
        return self.bound.version

    def serve(self, updates: int) -> float:
        """Until so many gradients have been applied. Returns the mean of their losses."""
        losses: list[float] = []
        while len(losses) < updates:
            worker = next((worker for worker in self.held if self.bound.may_apply(worker)), None)
            if worker is not None:
                losses.append(self.wire.unpack_gradients(self.held.pop(worker)))
                self.optimizer.step()
                self.staleness[self.bound.applied(worker)] += 1
                if worker in self.asking:
                    self._hand_out(worker)
                continue
            wish, worker = self.wire.wait()
            if wish == PUSH:
                self.held[worker] = self.wire.take_gradients(worker)
            elif worker in self.held:
                self.asking.add(worker)
            else:
                self._hand_out(worker)
        return sum(losses) / updates

    def _hand_out(self, worker: int) -> None:
        self.asking.discard(worker)
        self.bound.pulled(worker)
        self.wire.give_weights(worker)

    def state_dict(self) -> dict[str, Any]:
        if self.rank != SERVER:
            return {}
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.bound.version,
            "staleness": dict(self.staleness),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.bound.version = state["updates"]
            self.staleness = Counter(state["staleness"])


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
