"""Rendezvous: the address and the port at which the ranks meet, the name of the servers that fork them, and the time at
which Slurm will end the job."""

import os
import re
import socket
import sys
from typing import Optional, Tuple

from ..files.job import COLD, Job
from ..files.rules import Rules
from ..processes.slurm import Slurm

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
LOWEST, USUAL = 10000, 32768
QUEUE_S = 10


def first_host(nodes: str) -> str:
    """Returns the first host of a node list: n[03-07,12],m1 -> n03."""
    while True:
        found = re.match(r"([^],[]*)\[([0-9]+)[^]]*\](.*)$", nodes)
        if not found:
            return nodes.partition(",")[0]
        nodes = "".join(found.groups())


def address_of(host: str, slurm: Slurm) -> str:
    """Returns the host's name if other nodes can reach the host by it, else its address in Slurm. In Debian's
    /etc/hosts, the host's own name has the address 127.0.1.1."""
    said = slurm.children.run(["getent", "ahostsv4", host], err=False).said
    return slurm.address(host) if not said or said.startswith("127.") else host


def fork_server(rules: Rules, job: Job) -> Optional[str]:
    """Returns a name for the fork servers of this attempt; None if its ranks load torch themselves (nodes/task.py), as
    after an attempt whose program has set variables that torch reads when it is loaded."""
    if not rules.fork_server or sys.platform != "linux":
        return None
    is_cold = any(os.path.exists(os.path.join(job.folder_of(each), COLD)) for each in job.attempts())
    return None if is_cold else os.urandom(8).hex()


class Ports:
    """Ports below the kernel's ephemeral range, which outgoing connections do not use. The first port depends on job
    and restart count, so that two jobs on a node, or an old and a new attempt, have different ports."""

    def __init__(self, job: Job, address: str) -> None:
        self.job = job
        self.address = address
        self._tried = 0
        self._end = _ephemeral()

    def next(self) -> int:
        """Returns the next port on which no process listens."""
        while True:
            number = self.job.number * 10 + self.job.restart % 5 * 2 + self._tried
            self._tried += 1
            port = LOWEST + number % (self._end - LOWEST)
            if not _is_taken(self.address, port):
                return port


def _ephemeral() -> int:
    """Returns the first port of the kernel's ephemeral range."""
    try:
        with open(RANGE) as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL
    return low if low >= 12000 else USUAL  # a lower range covers nearly all ports, and leaves too few below


def _is_taken(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except OSError:
        return False
    return True


def times_of(job: Job, slurm: Slurm, end: str, now: float) -> Tuple[Optional[int], Optional[int], Optional[int]]:
    """Returns the times at which Slurm will end the job, the job was queued, and the job began; None if a time is
    unknown. end: the value of SLURM_JOB_END_TIME, empty on 22.05. squeue runs once, in this function, because a
    container may have no squeue."""
    words = ["squeue", "--noheader", "--jobs=" + job.id, "--format=%L %V %S"]
    # The queue's times are not important enough for a longer wait.
    said = slurm.ask(words, err=False, limit_s=QUEUE_S if end.isdigit() else None).said
    row = re.search(r"(?m)^(UNLIMITED|[A-Z_]+|[0-9:-]+) +(\S*[0-9]\S*|N/A) +(\S*[0-9]\S*|N/A)\s*$", said)
    left, queued, began = row.groups() if row else ("", "", "")
    seconds = seconds_of(left)
    # The time left is counted from `now`, the time at which squeue was called.
    ends = int(end) if end.isdigit() else None if seconds is None else int(now) + seconds
    known = queued.isdigit() and began.isdigit()
    return ends, int(queued) if known else None, int(began) if known else None


def seconds_of(text: str) -> Optional[int]:
    """Returns the seconds of a duration [D-][[HH:]MM:]SS; None if there is no limit."""
    found = re.match(r"(?:([0-9]+)-)?((?:[0-9]+:){0,3}[0-9]+)$", text)
    if not found:
        return None
    seconds = 0
    for part in found.group(2).split(":"):
        seconds = seconds * 60 + int(part)
    return int(found.group(1) or 0) * 86400 + seconds
