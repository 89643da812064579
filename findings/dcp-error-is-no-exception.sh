#!/usr/bin/env bash
# A checkpoint that torch.distributed.checkpoint cannot load passes through `except Exception`.
#
# Package:   torch 2.13.0 (numpy 2.2.6)
# Guess:     dcp.load() raises an Exception, as torch.load() does, so a loop over older checkpoints goes on with the next.
# Behaviour: CheckpointException derives from BaseException, as KeyboardInterrupt does. The ValueError about the key is only
#            inside it, in .failures, also if there is one process and no process group.
# Seen 2026-11-29: a model with a larger layer than the saved one
#            torch.load and load_state_dict: RuntimeError, caught by `except Exception`
#            dcp.load: CheckpointException, not caught by `except Exception`; failures: {0: ValueError}
# Matters:   "try the newest, on an error the one before" dies at the first bad checkpoint, and cleaning up in
#            `except Exception` (a half-written log, a lock) is left out.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0 numpy==2.2.6
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import sys

import torch
import torch.distributed.checkpoint as dcp

saved = torch.nn.Linear(2, 2).state_dict()
dcp.save(dict(saved), checkpoint_id=sys.argv[1])
torch.save(saved, sys.argv[1] + ".pt")


def with_torch(model):
    model.load_state_dict(torch.load(sys.argv[1] + ".pt"))


def with_dcp(model):
    dcp.load(model.state_dict(), checkpoint_id=sys.argv[1])


for load in with_torch, with_dcp:
    try:
        try:
            load(torch.nn.Linear(2, 3))
        except Exception as error:
            print(f"{load.__name__}: except Exception has caught a {type(error).__name__}")
    except BaseException as error:
        inner = {rank: type(wrapped[0]).__name__ for rank, wrapped in error.failures.items()}
        print(f"{load.__name__}: {type(error).__name__} was not caught; failures: {inner}")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what catches dcp's errors is not what this file states"; exit 1; }
with_torch: except Exception has caught a RuntimeError
with_dcp: CheckpointException was not caught; failures: {0: 'ValueError'}
EXPECTED
