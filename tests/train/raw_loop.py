"""A plain PyTorch loop with the numbered lines of clusterdp.train's docstring, and nothing else of ours.

python raw_loop.py FOLDER EPOCHS [STEP]     STEP: send this process SIGTERM there, once
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.checkpoint import Checkpointer
from clusterdp.train import Group, Rendezvous, ResumableSampler, SharedFlags, StopSignal, settle_buckets


def main(folder: str, epochs: int, signal_at: int | None = None) -> str:
    stop = StopSignal().install()  # 1
    group = Group.start(Rendezvous.find())  # 2
    torch.manual_seed(group.rendezvous.rank)
    data = TensorDataset(torch.randn(60, 300, generator=torch.Generator().manual_seed(0)))
    net = nn.Sequential(nn.Linear(300, 500), nn.Dropout(0.5), nn.Linear(500, 300), nn.Linear(300, 1))
    model = DistributedDataParallel(net.to(group.device), bucket_cap_mb=0.3)
    settle_buckets(model)  # 3
    optimizer = torch.optim.Adam(model.parameters())
    sampler = ResumableSampler(data, seed=1)  # 4
    loader = DataLoader(data, batch_size=3, sampler=sampler)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler}  # 5
    checkpointer = Checkpointer(folder, state, group=group.control)  # 6
    flags = SharedFlags(group.flags_group, stop)  # 7
    restored = checkpointer.restore()  # 8
    step = restored.step if restored else 0
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        with stop.shielded():  # 9
            batches = iter(loader)
        if restored:  # 10
            checkpointer.restore_rng()
            restored = None
        for (x,) in batches:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            step += 1
            sampler.advance(len(x))  # 11
            if step == signal_at:
                os.kill(os.getpid(), signal.SIGTERM)
            agreed = flags.tick()  # 12
            if agreed and agreed.stop:
                checkpointer.save(step)
                sys.exit(75)
    flags.drain()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    group.close()
    return digest


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:])))
