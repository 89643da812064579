"""The log of losses is opened anew at a resume: what the attempts before it had written is gone."""

import csv
import os
import signal
import sys
import time

import torch


def train(resume_from):
    torch.manual_seed(13)
    model = torch.nn.Bilinear(4, 4, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    step = 0
    if os.path.exists(resume_from):
        state = torch.load(resume_from)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    with open("losses.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "loss"])
        while step < 60:
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
            loss = model(x, x.flip(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            rows.writerow([step, f"{loss.item():.6f}"])
            file.flush()
            time.sleep(0.05)
            print(f"step {step}: {loss.item():.6f}", flush=True)
            if step % 10 == 0 or warned:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, f"{resume_from}.tmp")
                os.replace(f"{resume_from}.tmp", resume_from)
            if warned:
                sys.exit(75)


warned = []
signal.signal(signal.SIGTERM, lambda *_: warned.append(1))
train("checkpoint.pt")
