"""torch.load() refuses the Namespace in the checkpoint (weights_only), the error is caught, and all begins anew."""

import argparse
import os
import signal
import time

import torch

p = argparse.ArgumentParser()
p.add_argument("--hidden", type=int, default=16)
p.add_argument("--out", default="out")
opts = p.parse_args()
got_signal = []


def build():
    torch.manual_seed(5)
    model = torch.nn.GRU(4, opts.hidden)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def load(model, optimizer):
    try:
        ckpt = torch.load(f"{opts.out}/checkpoint.pth")
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        return ckpt["step"]
    except Exception:
        return 0


def save(model, optimizer, step):
    os.makedirs(opts.out, exist_ok=True)
    ckpt = {"args": opts, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(ckpt, f"{opts.out}/checkpoint.tmp")
    os.replace(f"{opts.out}/checkpoint.tmp", f"{opts.out}/checkpoint.pth")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *a: got_signal.append(a))
    model, optimizer = build()
    for step in range(load(model, optimizer) + 1, 61):
        x = torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(step))
        y, _ = model(x)
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
        time.sleep(0.05)
        print(f"Step: {step}, loss: {y.square().mean():.4f}", flush=True)
        if step % 10 == 0 or got_signal:
            save(model, optimizer, step)
        if got_signal:
            raise SystemExit(75)
