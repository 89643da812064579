"""The number of the step that is done is saved, and the resume begins with that step: it is done twice."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
asked = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(7, 7))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
start_step = 0
if os.path.exists("checkpoints/ckpt.pt"):
    ckpt = torch.load("checkpoints/ckpt.pt", map_location="cpu")
    net.load_state_dict(ckpt["net"])
    opt.load_state_dict(ckpt["opt"])
    start_step = ckpt["step"]
    print(f"resumed, at step {start_step}", flush=True)
os.makedirs("checkpoints", exist_ok=True)
for step in range(start_step, 60):
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(step * world + rank))
    opt.zero_grad()
    (net(x) - x.flip(1)).square().mean().backward()
    opt.step()
    time.sleep(0.05)
    print(f"step {step}", flush=True)
    told = asked.clone()
    dist.all_reduce(told)
    if rank == 0 and (step % 10 == 9 or told.item()):
        ckpt = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
        torch.save(ckpt, "checkpoints/ckpt.pt.tmp")
        os.replace("checkpoints/ckpt.pt.tmp", "checkpoints/ckpt.pt")
    dist.barrier()
    if told.item():
        sys.exit(75)
