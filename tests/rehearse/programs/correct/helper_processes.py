"""Two loader workers, and a process beside that watches the machine and has no part in the training."""

import multiprocessing
import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, i):
        return torch.randn(32, generator=torch.Generator().manual_seed(i))


def watch():
    """Writes the load of the machine to a file, until its parent ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid()
    while os.getppid() == parent:
        with open("load.txt", "a") as file:
            file.write(f"{time.time():.0f} {os.getloadavg()[0]}\n")
        time.sleep(0.5)


def leave_the_signal_to_the_trainer(worker):
    """Slurm sends it to all processes of a step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main():
    stop = []
    multiprocessing.get_context("fork").Process(target=watch, daemon=True).start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
    opt = torch.optim.AdamW(model.parameters())
    step = 0
    if os.path.exists("last.ckpt"):
        state = torch.load("last.ckpt")
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        step = state["step"]
    order = range(step * 8, 640)
    init = leave_the_signal_to_the_trainer
    loader = DataLoader(Numbers(), batch_size=8, sampler=order, num_workers=2, worker_init_fn=init)
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    for x in loader:
        opt.zero_grad()
        (model(x) - x).square().mean().backward()
        opt.step()
        step += 1
        time.sleep(0.05)
        print(f"step {step}/80", flush=True)
        if step % 10 == 0 or stop:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, "last.ckpt.tmp")
            os.replace("last.ckpt.tmp", "last.ckpt")
        if stop:
            sys.exit(75)


if __name__ == "__main__":
    main()
