"""A GAN: two models, two optimizers, an average of the generator, random numbers by rank, all in the checkpoint."""

import copy
import os
import signal
import time

import torch
import torch.distributed as dist

stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
parts = {"gen": torch.nn.Linear(8, 64), "dis": torch.nn.Linear(64, 1)}
gen, dis = parts.values()
parts["ema"] = copy.deepcopy(gen).requires_grad_(False)
parts["opt_g"] = torch.optim.Adam(gen.parameters(), lr=0.01)
parts["opt_d"] = torch.optim.Adam(dis.parameters(), lr=0.01)
parts["decay"] = torch.optim.lr_scheduler.ExponentialLR(parts["opt_g"], 0.98)
torch.manual_seed(100 + rank)
start = 0
if os.path.exists("gan.pt"):
    state = torch.load("gan.pt")
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["rng"][rank])
    start = state["step"]
for step in range(start + 1, 71):
    z = torch.randn(8, 8)
    for opt, sign in ((parts["opt_d"], 1.0), (parts["opt_g"], -1.0)):
        opt.zero_grad()
        (sign * dis(gen(z)).tanh().mean() + dis.weight.square().mean()).backward()
        for group in opt.param_groups:
            for p in group["params"]:
                dist.all_reduce(p.grad)
        opt.step()
    parts["decay"].step()
    with torch.no_grad():
        for average, now in zip(parts["ema"].parameters(), gen.parameters(), strict=True):
            average.lerp_(now, 0.1)
    time.sleep(0.05)
    print(f"iter {step}", flush=True)
    told = stop.clone()
    dist.all_reduce(told)
    if step % 10 == 0 or told.item():
        draws = [None] * dist.get_world_size()
        dist.all_gather_object(draws, torch.get_rng_state())
        if rank == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "rng": draws, "step": step}, "gan.tmp")
            os.replace("gan.tmp", "gan.pt")
        dist.barrier()
    if told.item():
        raise SystemExit(75)
