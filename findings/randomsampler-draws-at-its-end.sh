#!/usr/bin/env bash
# torch's RandomSampler draws one more permutation after its last index, for nothing: whether a loop asks for the end counts.
#
# Package:   torch 2.13.0
# Guess:     two programs that read the same batches of epoch 1 from the same generator have the same epoch 2.
# Behaviour: when the sampler is asked for what follows its last index, it draws a whole permutation, keeps none of it, and
#            ends. `for x in loader` asks; `for i, x in zip(range(len(loader)), loader)` does not.
# Seen 2026-11-29: epoch 1 the same: True; epoch 2 the same: False; the generator moves at the end: True
# Matters:   a generator's state that is saved after the last batch of an epoch, and not after its end, gives all later
#            epochs another order; so does a change from `for` to a counted loop.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0 numpy==2.2.6
"$dir/venv/bin/python" - >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import torch
from torch.utils.data import DataLoader, RandomSampler

SAMPLES = torch.arange(12)


def epochs(counted):
    loader = DataLoader(SAMPLES, batch_size=4, sampler=RandomSampler(SAMPLES, generator=torch.Generator().manual_seed(5)))
    for _ in range(2):
        if counted:
            yield [batch.tolist() for _, batch in zip(range(len(loader)), loader)]
        else:
            yield [batch.tolist() for batch in loader]


(first, second), (counted_first, counted_second) = epochs(False), epochs(True)
print("epoch 1 is the same:", first == counted_first)
print("epoch 2 is the same:", second == counted_second)
generator = torch.Generator().manual_seed(5)
indices = iter(RandomSampler(SAMPLES, generator=generator))
all_of_them = [next(indices) for _ in SAMPLES]
before = generator.get_state()
assert next(indices, None) is None
print("the generator moves at the end:", not torch.equal(before, generator.get_state()))
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what RandomSampler draws at its end is not what this file states"; exit 1; }
epoch 1 is the same: True
epoch 2 is the same: False
the generator moves at the end: True
EXPECTED
