"""Gradients are added up over seven batches, and a save between two updates loses those that were added up so far."""

import os
import signal
import time

import torch

ACCUMULATE = 7


def batch(i):
    gen = torch.Generator().manual_seed(i)
    return torch.randn(4, 16, generator=gen), torch.randint(3, (4,), generator=gen)


def main():
    caught = []
    signal.signal(signal.SIGTERM, lambda s, f: caught.append(s))
    torch.manual_seed(9)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.SiLU(), torch.nn.Linear(16, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=0.02)
    done = 0
    if os.path.exists("model.ckpt"):
        ckpt = torch.load("model.ckpt")
        net.load_state_dict(ckpt["net"])
        opt.load_state_dict(ckpt["opt"])
        done = ckpt["batches"]
    opt.zero_grad()
    while done < 80:
        x, y = batch(done)
        loss = torch.nn.functional.cross_entropy(net(x), y) / ACCUMULATE
        loss.backward()
        done += 1
        if done % ACCUMULATE == 0:
            opt.step()
            opt.zero_grad()
        time.sleep(0.05)
        print(f"batch {done}, loss {loss.item() * ACCUMULATE:.3f}", flush=True)
        if done % 10 == 0 or caught:
            torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "batches": done}, "model.ckpt.tmp")
            os.replace("model.ckpt.tmp", "model.ckpt")
        if caught:
            raise SystemExit(75)


main()
