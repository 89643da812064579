#!/usr/bin/env bash
# torchrun ends with 1, whatever exit code its workers chose, also if all saved and exited with 0 at SIGTERM.
#
# Package:   torch 2.13.0
# Guess:     workers that exit with 75 make torchrun exit with 75; workers that end with 0 after a SIGTERM make it 0.
# Behaviour: a failed worker is an exception of torchrun, so its exit code is Python's: 1. SIGTERM is handed on to the
#            workers, which are waited for, and is then an exception, too, whatever they made of it.
# Seen 2026-11-29:
#            both workers exit with 75: torchrun exits with 1
#            SIGTERM, both workers save and exit with 0: torchrun exits with 1
# Matters:   Slurm's RequeueExit=75, `afterok`, and a batch script that requeues by exit code see a plain failure; a
#            preempted job that obeyed is FAILED. Leave the verdict in a file.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
cat >"$dir/worker.py" <<'PROGRAM'
import os
import signal
import sys
import time


def save(signum, frame):
    open(f"{sys.argv[1]}/saved-{os.environ['RANK']}", "w").close()
    sys.exit(0)


if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, save)
open(f"{sys.argv[1]}/ready-{os.environ['RANK']}", "w").close()
time.sleep(120)
PROGRAM
run=("$dir/venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 "$dir/worker.py" "$dir")
code=0
"${run[@]}" 75 >"$dir/log" 2>&1 || code=$?
echo "both workers exit with 75: torchrun exits with $code" | tee "$dir/seen"
"${run[@]}" >"$dir/log" 2>&1 &
for _ in $(seq 600); do
  if [ -e "$dir/ready-0" ] && [ -e "$dir/ready-1" ]; then break; fi
  sleep 0.2
done
kill -TERM $!
code=0
wait $! || code=$?
saved=$(find "$dir" -maxdepth 1 -name 'saved-*' | wc -l)
echo "SIGTERM, $((saved)) workers save and exit with 0: torchrun exits with $code" | tee -a "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: torchrun's exit codes are not what this file states"; exit 1; }
both workers exit with 75: torchrun exits with 1
SIGTERM, 2 workers save and exit with 0: torchrun exits with 1
EXPECTED
