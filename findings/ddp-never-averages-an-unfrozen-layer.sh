#!/usr/bin/env bash
# A layer that is unfrozen after the model was wrapped in DDP trains on each rank by itself, without a word.
#
# Package:   torch 2.13.0, gloo on the CPU, 2 ranks
# Guess:     DDP averages the gradients of all parameters that require one when backward() runs, or complains.
# Behaviour: it registers its hooks once, when the model is wrapped. What gets requires_grad_(True) later has gradients of
#            this rank alone. find_unused_parameters=True, which is set here, says nothing.
# Seen 2026-11-29: after one step of SGD on the thawed backbone
#            backbone equal on both ranks: False; head equal on both ranks: True
# Matters:   "train the head for one epoch, then unfreeze" is a common recipe. The ranks become different models, and the
#            checkpoint has rank 0's, which was trained on its share of the data. Wrap the model anew.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def equal_on_both(parameter):
    copies = [torch.empty_like(parameter) for _ in range(2)]
    dist.all_gather(copies, parameter.detach())
    return torch.equal(*copies)


def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    torch.manual_seed(0)
    backbone, head = nn.Linear(4, 4), nn.Linear(4, 1)
    backbone.requires_grad_(False)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(backbone, head), find_unused_parameters=True)
    torch.manual_seed(1 + rank)
    for epoch in range(2):
        if epoch == 1:
            backbone.requires_grad_(True)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    words = f"backbone equal on both ranks: {equal_on_both(backbone.weight)}; head: {equal_on_both(head.weight)}"
    if rank == 0:
        print(words, flush=True)
    dist.destroy_process_group()


mp.start_processes(main, nprocs=2, start_method="fork")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what DDP does with a layer that was unfrozen later is not what this file states"; exit 1; }
backbone equal on both ranks: False; head: True
EXPECTED
