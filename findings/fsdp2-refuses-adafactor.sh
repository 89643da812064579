#!/usr/bin/env bash
# Adafactor and Rprop of torch itself cannot step on parameters that torch's own FSDP2 has sharded.
#
# Package:   torch 2.13.0
# Guess:     an optimizer of torch.optim works on what fully_shard() returns; Adafactor first of all, which exists for models
#            that are too large for Adam.
# Behaviour: on one rank or many, both raise in their first step: they square the norm of each column, or mask the gradient,
#            in place, and DTensor has no such result in its placement. The other dense optimizers step.
# Seen 2026-11-29: Adafactor RuntimeError, Rprop RuntimeError, the other 11 step
# Matters:   a training that chose Adafactor to save memory fails after the wait in the queue, at its first step. Which
#            optimizer a sharded model can have is known only by trying it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
BASE, OTHERS = torch.optim.Optimizer, ("Optimizer", "SparseAdam", "Muon")  # Muon takes matrices only
kinds = [kind for name, kind in sorted(vars(torch.optim).items()) if isinstance(kind, type) and name not in OTHERS]
stepped = 0
for kind in (kind for kind in kinds if issubclass(kind, BASE)):
    model = torch.nn.Linear(6, 4)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    optimizer = kind(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        return loss

    try:
        optimizer.step(closure)
        stepped += 1
    except RuntimeError as error:
        print(f"{kind.__name__}:", "placement" in str(error))
print("stepped:", stepped)
dist.destroy_process_group()
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: which optimizers step under FSDP2 is not what this file states"; exit 1; }
Adafactor: True
Rprop: True
stepped: 11
EXPECTED
