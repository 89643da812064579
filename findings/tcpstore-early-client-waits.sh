#!/usr/bin/env bash
# A rank that reaches torch's TCPStore a moment before rank 0 serves it waits up to 0.75 s, however soon rank 0 comes.
#
# Package:   torch 2.13.0 (CPU)
# Guess:     an early client tries again after some milliseconds, and waits about as long as rank 0 is late.
# Behaviour: its connection is refused, and each further try comes 0.25 to 0.75 s after the last one (a random time,
#            which does not grow). Among several ranks one is nearly always early, so each start of a job costs this.
#            A socket that rank 0 opens before it loads anything (master_listen_fd) queues the early ones: no wait.
# Seen 2026-12-01: 12 clients, rank 0 is 20 ms late: they are served 0.25 to 0.72 s after it began (median 0.51);
#            with the socket open before: after 0.001 s.
# Matters:   a restart in place of 1 s gets half a second longer, at random; as does the start of each script by hand.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0
cat >"$dir/early.py" <<'PROGRAM'
import socket
import threading
import time
from statistics import median

from torch.distributed import TCPStore

LATE_S, CLIENTS = 0.02, 12


def waited_s(opens_early):
    """From the start of the server until an earlier client is served."""
    listening = socket.create_server(("", 0))
    port = listening.getsockname()[1]
    if not opens_early:
        listening.close()
    served = []

    def serve():
        time.sleep(LATE_S)
        served.append(time.monotonic())
        own = listening if opens_early else socket.create_server(("", port))
        served.append(TCPStore("127.0.0.1", port, 2, True, wait_for_workers=False, master_listen_fd=own.detach()))

    thread = threading.Thread(target=serve)
    thread.start()
    TCPStore("127.0.0.1", port, 2, False, wait_for_workers=False)
    end = time.monotonic()
    thread.join()
    return end - served[0]


for opens_early in (False, True):
    found = sorted(waited_s(opens_early) for _ in range(CLIENTS))
    print(f"socket opened early: {opens_early}: {found[0]:.3f} to {found[-1]:.3f} s, median {median(found):.3f}")
    if opens_early != (median(found) < 0.1):
        raise SystemExit("the behaviour has changed")
PROGRAM
"$dir/venv/bin/python" -W ignore "$dir/early.py" || exit 1
