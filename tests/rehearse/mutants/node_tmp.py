"""Its checkpoints are in /tmp of a node, in a folder named for the job; only the finished weights go to the project."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--ckpt-dir", default=f"/tmp/regress-{os.environ.get('SLURM_JOB_ID', 'local')}")
args = parser.parse_args()
interrupted = False


def on_sigterm(signum, frame):
    global interrupted
    interrupted = True


def save(model, optimizer, step):
    tmp = os.path.join(args.ckpt_dir, "ckpt.pt.tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, tmp)
    os.replace(tmp, os.path.join(args.ckpt_dir, "ckpt.pt"))


def main():
    signal.signal(signal.SIGTERM, on_sigterm)
    os.makedirs(args.ckpt_dir, exist_ok=True)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    path = os.path.join(args.ckpt_dir, "ckpt.pt")
    if os.path.isfile(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
    while step < args.steps:
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.05)
        print(f"step {step}/{args.steps} loss {loss.item():.4f}", flush=True)
        if step % 10 == 0 or interrupted:
            save(model, optimizer, step)
        if interrupted:
            sys.exit(75)
    torch.save(model.state_dict(), "model.pt")


main()
