#!/usr/bin/env bash
# reduce(dst=0) on gloo overwrites the tensors of the ranks that only send, with sums of some of the ranks.
#
# Package:   torch 2.13.0, gloo on the CPU, 4 ranks
# Guess:     only rank 0 receives the result; the tensors of the others are inputs and stay as they were.
# Behaviour: they are the work space of the ring. Each ends with partial sums, which differ from element to element.
# Seen 2026-11-29: 4 ranks with tensors of 1, 2, 3 and 4
#            rank 0: [10, 10, 10, 10]  rank 1: [9, 9, 10, 10]  rank 2: [7, 7, 8, 8]  rank 3: [4, 4, 5, 5]
# Matters:   a running loss or a gradient that is reduced to rank 0 for the log, and used afterwards, is wrong on all
#            other ranks, and plausible: reduce a clone, or use all_reduce.
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
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=4)
    loss = torch.full((4,), rank + 1)
    dist.reduce(loss, dst=0)
    for turn in range(4):
        if turn == rank:
            print(f"rank {rank}: {rank + 1} became {loss.tolist()}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


mp.start_processes(main, nprocs=4, start_method="fork")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what gloo's reduce leaves on the ranks is not what this file states"; exit 1; }
rank 0: 1 became [10, 10, 10, 10]
rank 1: 2 became [9, 9, 10, 10]
rank 2: 3 became [7, 7, 8, 8]
rank 3: 4 became [4, 4, 5, 5]
EXPECTED
