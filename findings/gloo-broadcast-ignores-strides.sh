#!/usr/bin/env bash
# broadcast on gloo sends a transposed or channels_last tensor in the order of its memory: the values arrive mixed up.
#
# Package:   torch 2.13.0, gloo on the CPU, 2 ranks
# Guess:     shape and dtype are equal on both ranks, so the receiver gets the same tensor, or an error about strides.
# Behaviour: no error. A tensor without holes counts as contiguous, and strides are not sent: element i of the memory
#            becomes element i of the memory. all_reduce likewise adds elements that do not belong together.
# Seen 2026-11-29:
#            sent [[0, 3], [1, 4], [2, 5]], received [[0, 1], [2, 3], [4, 5]]
#            a channels_last weight of 24 values: 20 of them arrive at another place
#            all_reduce of x.T on rank 0 and an equal contiguous tensor on rank 1: not 2 x
# Matters:   a rank that converts its model to channels_last (or loads another layout) feeds the others a permuted weight.
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


def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    matrix = torch.arange(6).reshape(2, 3).T
    received = matrix if rank == 0 else torch.zeros(3, 2, dtype=torch.int64)
    assert received.shape == matrix.shape and received.dtype == matrix.dtype
    dist.broadcast(received, 0)
    kernel = torch.arange(24.0).reshape(2, 3, 2, 2)
    weight = kernel.to(memory_format=torch.channels_last) if rank == 0 else torch.zeros(2, 3, 2, 2)
    dist.broadcast(weight, 0)
    total = matrix.clone(memory_format=torch.preserve_format if rank == 0 else torch.contiguous_format)
    dist.all_reduce(total)
    if rank == 1:
        print("sent", matrix.tolist(), "received", received.tolist())
        print("channels_last:", (weight != kernel).sum().item(), "of 24 values are at another place")
        print("all_reduce is twice the tensor:", torch.equal(total, 2 * matrix), flush=True)
    dist.destroy_process_group()


mp.start_processes(main, nprocs=2, start_method="fork")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: gloo's collectives of a dense tensor with other strides are not what this file states"; exit 1; }
sent [[0, 3], [1, 4], [2, 5]] received [[0, 1], [2, 3], [4, 5]]
channels_last: 20 of 24 values are at another place
all_reduce is twice the tensor: False
EXPECTED
