"""The check of one node. The exit code is always 0, because the batch script reads the printed lines."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clusterdp.slurm import hostlist
from clusterdp.train.preflight import meeting, own_checks
from clusterdp.train.preflight.meeting import MeetingPlace
from clusterdp.train.preflight.own_checks import NodeFinding, tell

TOTAL_S = 420.0  # seconds after which a hang of a device or a disk ends; longer than all waits of a meeting together


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    began = time.monotonic()
    node = environ.get("SLURMD_NODENAME") or socket.gethostname()
    guard = threading.Timer(TOTAL_S, _give_up, [node])
    guard.daemon = True
    guard.start()
    failed = False
    for finding in check(Path(argv[0]), node, environ):
        tell(finding.line(node))
        failed = failed or (finding.fatal and not finding.node)
    if not failed:
        tell(f"preflight {node} ok {time.monotonic() - began:.1f}")
    return 0


def check(run_dir: Path, node: str, environ: Mapping[str, str]) -> Iterator[NodeFinding]:
    place = MeetingPlace(
        nodes=hostlist.expand(environ["SLURM_JOB_NODELIST"]),
        rank=int(environ["RANK"]),
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
    )
    failed = False
    for own in (own_checks.free_host_memory(), own_checks.run_folder(run_dir, node), own_checks.devices()):
        for finding in own:
            failed = failed or finding.fatal
            yield finding
    unreached = list(meeting.reach(place)) if place.rank else []
    yield from unreached
    if len(place.nodes) > 1 and not unreached:
        yield from meeting.meet(place, failed)


def _give_up(node: str) -> None:
    tell(NodeFinding(f"its checks did not end within {TOTAL_S:.0f} s").line(node))
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # os._exit(), because a failed process group may hang at the end of the interpreter
