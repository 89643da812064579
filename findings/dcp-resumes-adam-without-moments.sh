#!/usr/bin/env bash
# dcp.load() into optimizer.state_dict() restores the learning rate, and none of Adam's moments, without an error.
#
# Package:   torch 2.13.0 (numpy 2.2.6)
# Guess:     what was saved as optimizer.state_dict() loads into optimizer.state_dict(), or a missing key is an error.
# Behaviour: dcp loads only the leaves that the given dict has already. The state of a fresh optimizer is an empty dict:
#            it has no leaves, so nothing is asked for and nothing is missing. An empty list is a leaf, and is filled.
# Seen 2026-11-29: saved after 4 steps, loaded in a fresh optimizer
#            weights right; lr: 0.01; moments: 0 of 2; best: {} (saved: a loss); losses: [3, 2, 1]
# Matters:   the resumed loss has a bump that looks like noise, because lr and step of the scheduler are right. Give dcp
#            get_optimizer_state_dict(), which makes the moments first.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0 numpy==2.2.6
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed.checkpoint as dcp


def build(lr):
    model = torch.nn.Linear(3, 3)
    return model, torch.optim.AdamW(model.parameters(), lr)


model, optimizer = build(0.01)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": {"loss": 0.5}, "losses": [3, 2, 1]}
dcp.save(state, checkpoint_id=sys.argv[1])

fresh, optimizer = build(0.5)
state = {"model": fresh.state_dict(), "optimizer": optimizer.state_dict(), "best": {}, "losses": []}
dcp.load(state, checkpoint_id=sys.argv[1])
optimizer.load_state_dict(state["optimizer"])
print("weights:", torch.equal(fresh.weight, model.weight), "lr:", optimizer.param_groups[0]["lr"])
print("moments:", len(optimizer.state), "of 2; best:", state["best"], "losses:", state["losses"])
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what dcp loads into a fresh optimizer's state is not what this file states"; exit 1; }
weights: True lr: 0.01
moments: 0 of 2; best: {} losses: [3, 2, 1]
EXPECTED
