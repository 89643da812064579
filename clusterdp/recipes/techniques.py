"""Trains on the digits, with any technique that a config can choose. docs/techniques.md explains when to use each.

clusterdp submit configs/fsdp.yaml --cluster local
clusterdp submit configs/amp.yaml --cluster local train.amp.level=O3 train.amp.loss_scale=128
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.digits import load_digits
from clusterdp.recipes.results import report
from clusterdp.train import Ema, JobHandle, Loop, ModelParallel, gradient_sync, in_parts, warmup_cosine


def main(
    job: JobHandle,
    epochs: int = 4,
    batch_size: int = 8,
    lr: float = 0.02,
    ema_decay: float | None = None,
    split: bool = False,
    at_least: float = 0.0,
) -> float:
    """Trains the network, and returns the accuracy on the held-out images. batch_size: images of one rank in a backward
    pass. lr: learning rate for 32 images a step."""
    train_set, test_set = load_digits()
    net: nn.Module = layers()
    if split:
        devices = job.devices if len(job.devices) > 1 else job.devices * 2  # with one device, both parts are on it
        net = ModelParallel(*in_parts(layers(), len(devices)), devices=devices)
    model = job.wrap(net)
    batch = job.batch_size(batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=batch.scaled_lr(lr, reference=32, rule="sqrt"), momentum=0.9)
    job.amp.adopt(optimizer)
    loader = job.loader(train_set, batch_size, drop_last=True)
    steps = job.steps(loader, epochs)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(steps // 10, steps))
    ema = Ema(model, ema_decay, amp=job.amp) if ema_decay is not None else None
    nan_guard = job.nan_guard(model)
    criterion = nn.CrossEntropyLoss()

    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "amp": job.amp}
    if ema is not None:
        state["ema"] = ema
    loop = job.loop(loader, state, epochs=epochs)
    for images, labels in loop:
        with gradient_sync(model, loop.window_ends):
            with job.amp.autocast():
                logits = model(images.to(job.device))
                loss = criterion(logits, labels.to(logits.device))
            if nan_guard is not None:
                loss = nan_guard.watch(loss, loop.samples)
            job.amp.backward(loss / loop.window)
        if loop.window_ends:
            job.amp.step(optimizer, clip_norm=job.train.clip_norm, clip_value=job.train.clip_value, nan_guard=nan_guard)
            optimizer.zero_grad()
            scheduler.step()
            if ema is not None:
                ema.update()
        loop.log(loss=loss, lr=scheduler.get_last_lr()[0])

    accuracy = evaluate(job, loop, model, test_set)
    if ema is not None:
        with ema.applied():
            accuracy = evaluate(job, loop, model, test_set)
    return report(job, loop, "digits", accuracy, at_least, digest=digest(job, loop))


def layers() -> nn.Sequential:
    """Returns the network's layers as a sequence, which in_parts() can cut between any two layers."""
    return nn.Sequential(Stem(), Block(), Block(), Block(), nn.Linear(128, 10))


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.out = nn.Linear(256, 128)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.norm(self.conv(images)).relu().flatten(1))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up = nn.Linear(128, 256)
        self.down = nn.Linear(256, 128)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.dropout(self.down(self.up(self.norm(x)).relu()))
        return out


@torch.no_grad()
def evaluate(job: JobHandle, loop: Loop[Any], model: nn.Module, test_set: TensorDataset) -> float:
    """Returns the accuracy. All ranks get the same number of batches, because FSDP gathers weights in each batch; some
    images may be counted twice."""
    model.eval()
    each = -(-len(test_set) // job.world_size)
    mine = torch.arange(job.rank * each, (job.rank + 1) * each)
    right = torch.zeros((), device=job.device)
    for places in loop.watch(torch.split(mine, 64)):
        images, labels = test_set[places % len(test_set)]
        logits = model(images.to(job.device)).cpu()
        right += ((logits.argmax(1) == labels) & (places < len(test_set))).sum().to(job.device)
    model.train()
    dist.all_reduce(right)
    return right.item() / len(test_set)


def digest(job: JobHandle, loop: Loop[Any]) -> str:
    """Returns a digest of every bit of the state on all ranks, except BatchNorm's statistics, which only rank 0
    saves."""
    model, *others = (loop.state[name] for name in ("model", "optimizer", "amp"))
    parameters = [parameter.detach() for parameter in model.parameters()]
    mine = hashlib.sha256(repr(_plain([parameters, [thing.state_dict() for thing in others]])).encode()).hexdigest()
    return hashlib.sha256("".join(job.group.gather(mine)).encode()).hexdigest()


def _plain(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        local = tree.to_local() if hasattr(tree, "to_local") else tree
        return local.float().tolist()
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return [_plain(item) for item in tree] if isinstance(tree, (list, tuple)) else tree


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
