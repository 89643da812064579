#!/usr/bin/env bash
# all_reduce(MAX) on gloo keeps or loses a NaN, depending on which rank has it.
#
# Package:   torch 2.13.0, gloo on the CPU, 4 ranks
# Guess:     MAX treats NaN as torch.max does: one rank's NaN reaches all ranks, so a reduced loss tells them all.
# Behaviour: each part of the tensor keeps the NaN of one rank only, the rank at which its ring begins. With one element
#            this is rank 0; of 64 elements that are NaN on any one rank, 16 are NaN afterwards. All ranks agree on it.
# Seen 2026-11-29:
#            one element, NaN on rank 0: nan; rank 1: 0.0; rank 2: 1.0; rank 3: 2.0
#            64 elements, NaN on rank 0: 16 of 64; rank 1: 16; rank 2: 16; rank 3: 16
# Matters:   "stop if the largest loss is NaN" sees 1 of 4 cases. Reduce torch.isnan(loss) as a number instead.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
"$dir/venv/bin/python" - "$dir/rendezvous" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 4


def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=RANKS)
    for culprit in range(RANKS):
        one = torch.tensor([float("nan") if rank == culprit else float(rank)])
        many = one.repeat(64)
        for tensor in one, many:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        if rank == 0:
            print(f"NaN on rank {culprit}: {one.item()}; {many.isnan().sum()} of 64", flush=True)
    dist.destroy_process_group()


mp.start_processes(main, nprocs=RANKS, start_method="fork")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: all_reduce(MAX) of a NaN on gloo is not what this file states"; exit 1; }
NaN on rank 0: nan; 16 of 64
NaN on rank 1: 0.0; 16 of 64
NaN on rank 2: 1.0; 16 of 64
NaN on rank 3: 2.0; 16 of 64
EXPECTED
