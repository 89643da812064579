#!/usr/bin/env bash
# Each `for batch in loader` takes a number from torch's global random numbers, also without shuffle and without workers.
#
# Package:   torch 2.13.0
# Guess:     a validation pass in order, in eval mode, under no_grad, uses no random numbers and leaves training as it was.
# Behaviour: iter(DataLoader) draws a seed for workers that it may not have. Evaluating once more, or before training, moves
#            all dropout masks and shuffles that follow. A loader with generator= of its own draws from that one.
# Seen 2026-11-29: training is the same after 0 and 1 validation passes: False; with generator=: True
# Matters:   evaluating more often, or once before the first step, gives another run at the same seed; and a resume that
#            evaluates first cannot have the bits of the run that it continues.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import torch
from torch.utils.data import DataLoader

SAMPLES = torch.arange(8.0).reshape(8, 1)


def train(validations, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Dropout(0.5))
    validation = DataLoader(SAMPLES, batch_size=4, shuffle=False, num_workers=0, **options)
    for _ in range(validations):
        model.eval()
        with torch.no_grad():
            for batch in validation:
                model(batch)
        model.train()
    model(SAMPLES).sum().backward()
    return model[0].weight.grad


print("the same after 0 and 1 validation passes:", torch.equal(train(0), train(1)))
own = [train(validations, generator=torch.Generator()) for validations in (0, 1)]
print("with a generator of its own:", torch.equal(*own))
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what a pass over a DataLoader does to the random numbers is not what this file states"; exit 1; }
the same after 0 and 1 validation passes: False
with a generator of its own: True
EXPECTED
