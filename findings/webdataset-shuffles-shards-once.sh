#!/usr/bin/env bash
# WebDataset's shardshuffle gives the shards in the same order in every epoch, and resampled=True ignores its seed.
#
# Package:   webdataset 1.0.2 (torch is not needed)
# Guess:     shardshuffle=100 shuffles anew in each pass; seed= decides the order, whichever way shards are drawn.
# Behaviour: the shuffle of shards begins each pass with the same random numbers. Only detshuffle=True goes on with the epoch.
#            With resampled=True the seed is mixed with process id, time and os.urandom, also with detshuffle=True.
# Seen 2026-11-29: 12 shards
#            shardshuffle, passes 1, 2 and 3 equal: True; detshuffle: False; resampled, two with seed=1 equal: False
# Matters:   with a small buffer of samples behind it, a batch has nearly the same samples in each epoch; and a resampled
#            run cannot be repeated by its seed.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet webdataset==1.0.2
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import itertools
import os
import sys

import webdataset

os.mkdir(sys.argv[1])
shards = [f"{sys.argv[1]}/{number:02}.tar" for number in range(12)]
for number, shard in enumerate(shards):
    with webdataset.TarWriter(shard) as tar:
        tar.write({"__key__": f"{number:02}", "txt": str(number)})


def epoch(data):
    return [sample["__key__"] for sample in itertools.islice(data, 12)]


once = webdataset.WebDataset(shards, shardshuffle=100, seed=1)
print("shardshuffle, passes 1, 2 and 3 equal:", epoch(once) == epoch(once) == epoch(once))
print("in the order of the list:", epoch(once) == sorted(epoch(once)))
anew = webdataset.WebDataset(shards, shardshuffle=100, seed=1, detshuffle=True)
print("detshuffle, passes 1 and 2 equal:", epoch(anew) == epoch(anew))
drawn = [webdataset.WebDataset(shards, resampled=True, shardshuffle=False, detshuffle=True, seed=1) for _ in range(2)]
print("resampled, two with seed=1 equal:", epoch(drawn[0]) == epoch(drawn[1]))
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: in which order WebDataset reads shards is not what this file states"; exit 1; }
shardshuffle, passes 1, 2 and 3 equal: True
in the order of the list: False
detshuffle, passes 1 and 2 equal: False
resampled, two with seed=1 equal: False
EXPECTED
