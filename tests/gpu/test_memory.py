"""Host memory of a restore on a GPU: a few blocks, and nothing that stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

PROGRAM = """
import json, sys, torch
from clusterdp.checkpoint import Checkpointer
device, folder, what = torch.device(sys.argv[1]), sys.argv[2], sys.argv[3]
size, layers = (4096, 20) if device.type == "cuda" else (512, 20)
torch.zeros(1, device=device)
model = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False, device=device) for _ in range(layers)))
optimizer = torch.optim.AdamW(model.parameters())
checkpointer = Checkpointer(folder, {"model": model, "optimizer": optimizer})
if what == "save":
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    checkpointer.save(1)
    sys.exit()
def mb(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0]) >> 10
open("/proc/self/clear_refs", "w").write("5")
before = mb("VmRSS")
checkpointer.restore()
state = sum(t.nbytes for t in [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]) >> 20
print(json.dumps({"state": state, "peak": mb("VmHWM") - before, "after": mb("VmRSS") - before}))
"""


def test_restore_takes_little_host_memory_and_gives_it_back(tmp_path: Path, device: torch.device) -> None:
    for what in ("save", "restore"):
        words = [sys.executable, "-c", PROGRAM, str(device), str(tmp_path), what]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    own = found["state"] if device.type == "cpu" else 0  # there it is host memory itself
    assert found["peak"] < own + 300, found
    assert found["after"] < own + 200, found
