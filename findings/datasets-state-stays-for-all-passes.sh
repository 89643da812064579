#!/usr/bin/env bash
# A state that was loaded into a Hugging Face stream is where every later pass begins, not only the next one.
#
# Package:   datasets 5.2.0
# Guess:     load_state_dict() sets the place for the pass that is resumed; the next `for` begins at the start, as always.
# Behaviour: the state stays until set_epoch() gets another number than the data set has: set_epoch(0) in the first epoch is
#            none. A state from the end of a pass makes all passes empty.
# Seen 2026-11-29: six rows, a state after two of them; the lengths of three passes
#            without set_epoch: 4, 4, 4; with set_epoch(0, 1, 2): 4, 6, 6; a state from the end: 0, 0, 0
# Matters:   a resumed run that loops by steps over its stream, or trains in two stages, never sees the first rows again, or
#            ends at once with exit code 0. The run that was not stopped sees all.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet datasets==5.2.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import datasets


def rows(shards):
    for shard in shards:
        yield from ({"x": number} for number in shard)


def stream():
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [[0, 1, 2], [3, 4, 5]]})


def passes(state, epochs=False):
    data, lengths = stream(), []
    data.load_state_dict(state)
    for epoch in range(3):
        if epochs:
            data.set_epoch(epoch)
        lengths.append(sum(1 for _ in data))
    return lengths


data = stream()
batches = iter(data)
for _ in range(2):
    next(batches)
after_two = data.state_dict()
for _ in batches:
    pass
print("without set_epoch:", passes(after_two))
print("with set_epoch:", passes(after_two, epochs=True))
print("a state from the end:", passes(data.state_dict()))
data = stream()
print("never stopped:", [sum(1 for _ in data) for _ in range(3)])
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: where a resumed stream of datasets begins is not what this file states"; exit 1; }
without set_epoch: [4, 4, 4]
with set_epoch: [4, 6, 6]
a state from the end: [0, 0, 0]
never stopped: [6, 6, 6]
EXPECTED
