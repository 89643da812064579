#!/usr/bin/env bash
# submitit's jobs ignore SIGTERM, which is what Slurm sends at a preemption: checkpoint() is not called.
#
# Package:   submitit 1.5.4, its local executor
# Guess:     a callable with a checkpoint() method saves and is requeued when its job is preempted.
# Behaviour: checkpoint() belongs to SIGUSR2, which Slurm sends before the time limit. A preemption comes as SIGTERM, and
#            as SIGUSR2 too only where the site sets PreemptParameters=send_user_signal. For SIGTERM submitit installs a
#            handler that writes a line to the log, so the program goes on until Slurm's KILL.
# Seen 2026-11-29: SIGTERM in mid-job: saved: False; result: went on to its end; log: Bypassing signal SIGTERM
# Matters:   on a preemptible partition all work since the last periodic checkpoint is lost, although the time limit, with
#            which one tries checkpoint(), works.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet submitit==1.5.4
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import os
import pathlib
import signal
import sys
import time

import submitit


class Training:
    def __call__(self, folder):
        pathlib.Path(folder, "started").write_text(str(os.getpid()))
        deadline = time.monotonic() + 60
        while not pathlib.Path(folder, "signalled").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        return "went on to its end"

    def checkpoint(self, folder):
        pathlib.Path(folder, "saved").touch()
        return submitit.helpers.DelayedSubmission(self, folder)


folder = pathlib.Path(sys.argv[1])
folder.mkdir()
executor = submitit.LocalExecutor(folder=folder / "logs")
executor.update_parameters(timeout_min=5)
job = executor.submit(Training(), str(folder))
while not (folder / "started").exists() or not (folder / "started").read_text():
    time.sleep(0.1)
os.kill(int((folder / "started").read_text()), signal.SIGTERM)
(folder / "signalled").touch()
print("result:", job.result())
print("saved:", (folder / "saved").exists())
print("log:", *(line.partition(") - ")[2] for line in job.stderr().splitlines() if "SIGTERM" in line))
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what submitit does with SIGTERM is not what this file states"; exit 1; }
result: went on to its end
saved: False
log: Bypassing signal SIGTERM
EXPECTED
