"""A small DDP training on the CPU that survives every drill: it saves every few steps and at SIGTERM, under a temporary
name, and goes on from its newest checkpoint that can be read. faults.py makes others of it, by a line or two."""

# mypy: ignore-errors
import os
import signal
import sys
import time
from pathlib import Path

stopped = False


def on_term(number, frame):
    global stopped
    stopped = True


signal.signal(signal.SIGTERM, on_term)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS, EVERY, BATCH, SAMPLES = 24, 4, 4, 64
FOLDER = Path("checkpoints")

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
layers = [torch.nn.Linear(16, 256), torch.nn.Linear(256, 256), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=50)  # too large at first: skips some steps
inputs, targets = torch.randn(SAMPLES, 16), torch.randn(SAMPLES, 1)
torch.manual_seed(100 + rank)
step, position, best = 0, 0, float("inf")


def order(epoch):
    """The samples of this rank, in the order of this epoch."""
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))[rank::ranks]


def save():
    draws = [None] * ranks
    dist.all_gather_object(draws, torch.get_rng_state())
    state = {
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "rng": draws,
        "step": step,
        "sampler": {"position": position},
        "best_loss": best,
    }
    if rank == 0:
        write(state, FOLDER / f"step_{step:04d}.pt")
    dist.barrier()


def write(state, path):
    path.parent.mkdir(exist_ok=True)
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def newest():
    for path in sorted(FOLDER.glob("*.pt"), reverse=True):
        try:
            return torch.load(path)
        except (RuntimeError, EOFError, OSError) as error:
            print(f"{path}: {error}")
    return None


if state := newest():
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["rng"][rank])
    step, best = state["step"], state["best_loss"]
    position = state["sampler"]["position"]

while step < STEPS:
    epoch, begin = divmod(position, SAMPLES // ranks)
    batch = order(epoch)[begin : begin + BATCH]
    loss = torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    step, position = step + 1, position + BATCH
    time.sleep(0.05)
    print(f"step {step} loss {loss.item():.4f}", flush=True)
    told = torch.tensor([int(stopped), loss.item()])
    dist.all_reduce(told)
    if told[1] / ranks < best:
        best = told[1].item() / ranks
        if rank == 0:
            write(model.module.state_dict(), FOLDER.parent / "best.pt")
    if told[0] > 0:
        save()
        sys.exit(0)
    if step % EVERY == 0:
        save()
dist.destroy_process_group()
