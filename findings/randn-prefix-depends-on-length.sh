#!/usr/bin/env bash
# The first numbers of torch.randn(n) depend on n, on the CPU, also for the same seed.
#
# Package:   torch 2.13.0
# Guess:     a longer draw begins with the shorter one, as torch.rand's does.
# Behaviour: below 16 numbers they are drawn in pairs; from 16 on eight at a time with their partners eight places later; if
#            n is not a multiple of 16, the last 16 places are drawn again, from numbers further on in the stream.
# Seen 2026-11-29: equal numbers at the beginning, seed 0
#            randn(32) and randn(16): 16 of 16; randn(17) and randn(16): 1 of 16; randn(40) and randn(20): 4 of 20
# Matters:   with 10 numbers a sample, a rank's noise is no slice of the global batch's, and samples in a short last batch
#            have other noise than in a full one; with sizes that are multiples of 16, as most tests have, all is equal.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import torch


def draw(function, length):
    return function(length, generator=torch.Generator().manual_seed(0))


for function, long, short in (
    (torch.rand, 40, 20),
    (torch.randn, 32, 16),
    (torch.randn, 16, 15),
    (torch.randn, 17, 16),
    (torch.randn, 40, 20),
):
    equal = draw(function, long)[:short] == draw(function, short)
    verdict = "all equal" if equal.all() else "most differ" if equal.sum() <= short / 2 else "some differ"
    print(f"{function.__name__}({long}) and {function.__name__}({short}): {verdict}")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: which numbers torch.randn begins with is not what this file states"; exit 1; }
rand(40) and rand(20): all equal
randn(32) and randn(16): all equal
randn(16) and randn(15): most differ
randn(17) and randn(16): most differ
randn(40) and randn(20): most differ
EXPECTED
