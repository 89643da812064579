#!/usr/bin/env bash
# A DataLoader iterator that was left early ends its workers at once, or 5 s later for each worker: whether it is in a cycle.
#
# Package:   torch 2.13.0
# Guess:     break out of `for batch in loader`, and the workers end as soon as the iterator is freed, however it is freed.
# Behaviour: the iterator sends its workers a word when it is deleted. In a reference cycle, Python's collector first runs
#            the finalizers of the queues that carry this word, then deletes the iterator: it waits for 5 s for each
#            worker, one after the other, in whatever line of the program the collector happens to run.
# Seen 2026-11-30: 2 workers end at once without a cycle: True; after 5 s each in a cycle: True
# Matters:   a training object that keeps `self.batches = iter(loader)` is nearly always in a cycle. With 16 workers an
#            epoch that ends early stalls the training by 80 s, at another place each time, and a warned job by its grace
#            time. `del self.batches` at the break is enough.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
cat >"$dir/left.py" <<'PROGRAM'
import gc
import time

from torch.utils.data import DataLoader


class Training:
    def __init__(self, in_cycle):
        self.batches = iter(DataLoader(range(64), batch_size=2, num_workers=2))
        self.steps = [self.step] if in_cycle else []
        next(self.batches)

    def step(self):
        pass


def seconds(in_cycle):
    training = Training(in_cycle)
    began = time.monotonic()
    del training
    gc.collect()
    return time.monotonic() - began


if __name__ == "__main__":
    print("2 workers end at once without a cycle:", seconds(False) < 2)
    print("after 5 s each in a cycle:", 10 <= seconds(True) < 13)
PROGRAM
"$dir/venv/bin/python" "$dir/left.py" >"$dir/seen" 2>"$dir/stderr" || { cat "$dir/stderr"; exit 1; }
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what the end of a DataLoader iterator waits for is not what this file states"; exit 1; }
2 workers end at once without a cycle: True
after 5 s each in a cycle: True
EXPECTED
