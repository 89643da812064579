"""The moving average of the weights is saved and not loaded: it begins again from the weights of the checkpoint."""

import copy
import os
import signal
import sys
import time

import torch


class EMA:
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for old, new in zip(self.shadow.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 1 - self.decay)


def main():
    stop = []
    signal.signal(signal.SIGTERM, lambda *args: stop.append(args))
    torch.manual_seed(8)
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.GELU(), torch.nn.Linear(12, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=0.02)
    step = 0
    if os.path.exists("diffusion.pt"):
        ckpt = torch.load("diffusion.pt")
        model.load_state_dict(ckpt["model"])
        opt.load_state_dict(ckpt["opt"])
        step = ckpt["step"]
    ema = EMA(model)
    while step < 60:
        gen = torch.Generator().manual_seed(step)
        x, noise = torch.randn(16, 12, generator=gen), torch.randn(16, 3, generator=gen)
        loss = (model(x) - noise).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        ema.update(model)
        step += 1
        time.sleep(0.05)
        print(f"step={step} loss={loss.item():.4f}", flush=True)
        if step % 12 == 0 or stop:
            ckpt = {"model": model.state_dict(), "ema": ema.shadow.state_dict(), "opt": opt.state_dict(), "step": step}
            torch.save(ckpt, "diffusion.pt.tmp")
            os.replace("diffusion.pt.tmp", "diffusion.pt")
        if stop:
            sys.exit(75)


main()
