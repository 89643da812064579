#!/usr/bin/env bash
# safetensors writes other bytes for the same tensors and metadata, each time that it is asked.
#
# Package:   safetensors 0.8.0 (numpy 2.2.6)
# Guess:     a plain, sorted format: equal content has an equal checksum. Without metadata this is so.
# Behaviour: the header lists `metadata` in the order of a hash table whose seed is random: with two entries or more each
#            save is another file of the same length, also within one process.
# Seen 2026-11-29: 20 saves of one tensor: 1 checksum without metadata, 1 with one entry, more than four with four
# Matters:   comparing two runs by sha256sum, a store that keeps equal files once, and rsync --checksum see a change that
#            is none. Put one entry, with sorted JSON in it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet safetensors==0.8.0 numpy==2.2.6
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import hashlib

import numpy
from safetensors.numpy import save

TENSORS = {"weight": numpy.arange(4.0)}
ONE, FOUR = {"run": "a"}, {"run": "a", "step": "100", "epoch": "2", "format": "np"}

for metadata in None, ONE, FOUR:
    files = [save(TENSORS, metadata) for _ in range(20)]
    sums = {hashlib.sha256(file).hexdigest() for file in files}
    few = len(sums) if len(sums) < 5 else "more than four"
    print(f"{len(metadata or {})} entries: {len({len(file) for file in files})} length, {few} checksums")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: the bytes that safetensors writes are not what this file states"; exit 1; }
0 entries: 1 length, 1 checksums
1 entries: 1 length, 1 checksums
4 entries: 1 length, more than four checksums
EXPECTED
