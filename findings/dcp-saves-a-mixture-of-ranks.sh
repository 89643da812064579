#!/usr/bin/env bash
# torch.distributed.checkpoint saves tensors that differ between ranks as a mixture: each key of another rank.
#
# Package:   torch 2.13.0, gloo on the CPU, 4 ranks (numpy 2.2.6, which its object collectives need)
# Guess:     each rank's own values come back to it, or those of rank 0 do, or it refuses to save.
# Behaviour: equal keys of plain tensors are taken for replicas. Each key is written by one rank, chosen so that all have
#            as many bytes to write, and every rank loads that one: a state in which no rank has ever been.
# Seen 2026-11-29: each rank saves its own number under four keys
#            rank 0 loads: large 0, middle 1, small 2, tiny 3; the other ranks: the same. (Which rank has which key varies.)
# Matters:   RNG states, data positions and BatchNorm's statistics under DDP differ between ranks. All ranks resume with the
#            random numbers of one, and a layer's mean and variance can be those of two different ranks.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0 numpy==2.2.6
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

SIZES = {"large": 1000, "middle": 600, "small": 500, "tiny": 8}


def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=4)
    state = {name: torch.full((size,), float(rank)) for name, size in SIZES.items()}
    dcp.save(state, checkpoint_id=sys.argv[1] + ".checkpoint")
    for tensor in state.values():
        tensor.fill_(-1)
    dcp.load(state, checkpoint_id=sys.argv[1] + ".checkpoint")
    loaded = torch.stack([tensor[0] for tensor in state.values()])
    print(f"rank {rank} loads those of", dict(zip(state, loaded.tolist())), file=sys.stderr)
    all_loaded = [torch.empty_like(loaded) for _ in range(4)]
    dist.all_gather(all_loaded, loaded)
    if rank == 0:
        print("the four keys are those of", len(loaded.unique()), "ranks")
        print("all ranks load the same:", all(torch.equal(loaded, other) for other in all_loaded), flush=True)
    dist.destroy_process_group()


mp.start_processes(main, nprocs=4, start_method="fork")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: which rank's tensors dcp saves is not what this file states"; exit 1; }
the four keys are those of 4 ranks
all ranks load the same: True
EXPECTED
