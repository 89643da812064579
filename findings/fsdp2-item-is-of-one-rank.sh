#!/usr/bin/env bash
# .item() of a number that was computed from FSDP2's parameters is a part of it: this rank's, and another on each rank.
#
# Package:   torch 2.13.0, gloo on the CPU, 2 ranks
# Guess:     a sum, a maximum or a test for NaN of a DTensor is one number: .item() gives it, as it does for any tensor.
# Behaviour: a reduction of a sharded tensor is a DTensor that is still to be reduced over the ranks ("Partial"), and
#            .item() reads what this rank has. full_tensor() has the number.
# Seen 2026-11-29: weight = 0 to 15 in 4 rows on 2 ranks, a NaN in the gradient's last row
#            sum: rank 0 28.0, rank 1 92.0 (full 120.0); largest: 7.0, 15.0 (full 15.0); NaN: False, True (full True)
# Matters:   logged sums are wrong, and a skip of the step because of a NaN is decided by each rank for itself. (The norm
#            that clip_grad_norm_ returns is whole in this release.)
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0 numpy==2.2.6
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    model = torch.nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(16.0).reshape(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    loss_weights = torch.tensor([1.0, 1.0, 1.0, float("nan")])
    (model(torch.ones(1, 4)) * loss_weights).sum().backward()
    weight, grad = model.weight.detach(), model.weight.grad
    numbers = {"sum": weight.sum(), "largest": weight.max(), "NaN": grad.isnan().any()}
    words = [f"{name} {number.item()} (full {number.full_tensor().item()})" for name, number in numbers.items()]
    for turn in range(2):
        if turn == rank:
            print(f"rank {rank}: {', '.join(words)}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


mp.start_processes(main, nprocs=2, start_method="fork")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what .item() gives of FSDP2's parameters is not what this file states"; exit 1; }
rank 0: sum 28.0 (full 120.0), largest 7.0 (full 15.0), NaN False (full True)
rank 1: sum 92.0 (full 120.0), largest 15.0 (full 15.0), NaN True (full True)
EXPECTED
