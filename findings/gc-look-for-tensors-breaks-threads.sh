#!/usr/bin/env bash
# The usual loop over gc.get_objects() for living tensors makes tuple(...) fail in other threads, such as one that saves.
#
# Package:   torch 2.13.0, Python 3.10 to 3.13
# Guess:     `for each in gc.get_objects(): torch.is_tensor(each)` only looks.
# Behaviour: the list holds each object that the collector knows, and so also a tuple that another thread is filling from a
#            generator. When that thread goes on, CPython finds that somebody else holds its tuple, and raises SystemError
#            ("bad argument to internal function") in that thread, in a line that has done nothing wrong.
# Seen 2026-11-30: loops over all objects, other thread disturbed: True; gc.get_referrers(), other thread disturbed: False
# Matters:   memory reports of this kind run in training loops beside threads that save, log and load. The error comes once
#            in thousands of steps, in the save. gc.get_referrers(Class) finds the objects of a class written in Python, and
#            takes half the time.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
cat >"$dir/look.py" <<'PROGRAM'
import gc
import threading

import torch


def all_objects():
    return [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]


def referrers():
    return [each for each in gc.get_referrers(torch.optim.SGD) if type(each) is torch.optim.SGD]


def disturbs(look):
    errors, is_over = [], threading.Event()

    def other():
        while not is_over.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    found = [look() for _ in range(60)]
    is_over.set()
    thread.join()
    return all(found) and bool(errors)


optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
print("loops over all objects, other thread disturbed:", disturbs(all_objects))
print("gc.get_referrers(), other thread disturbed:", disturbs(referrers))
PROGRAM
"$dir/venv/bin/python" "$dir/look.py" >"$dir/seen" 2>"$dir/stderr" || { cat "$dir/stderr"; exit 1; }
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what a loop over all objects does to other threads is not what this file states"; exit 1; }
loops over all objects, other thread disturbed: True
gc.get_referrers(), other thread disturbed: False
EXPECTED
