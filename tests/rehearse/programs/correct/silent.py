"""Prints nothing at all."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

flag = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: flag.fill_(1))
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
step = 0
if os.path.exists("ckpt/last.pth"):
    state = torch.load("ckpt/last.pth")
    net.module.load_state_dict(state["net"])
    opt.load_state_dict(state["opt"])
    step = state["step"]
while step < 100:
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
    opt.zero_grad()
    (net(x) - x).square().mean().backward()
    opt.step()
    step += 1
    time.sleep(0.05)
    told = flag.clone()
    dist.all_reduce(told)
    if step % 20 == 0 or told.item():
        if dist.get_rank() == 0:
            os.makedirs("ckpt", exist_ok=True)
            torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "step": step}, "ckpt/last.pth.tmp")
            os.replace("ckpt/last.pth.tmp", "ckpt/last.pth")
        dist.barrier()
    if told.item():
        sys.exit(75)
