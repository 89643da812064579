"""accelerate's save_state() into a folder of a temporary name, which is renamed when it is whole."""

import os
import shutil
import signal
import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

stop = []


class Progress:
    """Goes into the checkpoint by register_for_checkpointing()."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def main():
    accelerator = Accelerator(cpu=True)
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    set_seed(3)
    data = TensorDataset(torch.randn(1280, 32), torch.randn(1280, 1))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)
    # A generator of its own: else each new iterator draws from the random numbers that dropout takes, also at a resume.
    loader = DataLoader(data, batch_size=8, shuffle=False, generator=torch.Generator())
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if found := sorted(name for name in os.listdir("states") if name.isdigit()) if os.path.isdir("states") else []:
        accelerator.load_state(f"states/{found[-1]}")
    for x, y in accelerator.skip_first_batches(loader, progress.step):
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress.step += 1
        time.sleep(0.05)
        accelerator.print(f"step {progress.step}", flush=True)
        told = accelerator.reduce(torch.tensor([len(stop)]))
        if progress.step % 10 == 0 or told.item():
            save(accelerator, f"states/{progress.step:05d}")
        if told.item():
            sys.exit(75)
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "final.pt")


def save(accelerator, folder):
    if accelerator.is_main_process:
        shutil.rmtree("states/incomplete", ignore_errors=True)
        os.makedirs("states", exist_ok=True)
    accelerator.wait_for_everyone()
    accelerator.save_state("states/incomplete")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename("states/incomplete", folder)
        for old in sorted(name for name in os.listdir("states") if name.isdigit())[:-2]:
            shutil.rmtree(f"states/{old}")
    accelerator.wait_for_everyone()


main()
