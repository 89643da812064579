"""Where the batch program lets the ranks meet, and until when: a wrong host or port, and the whole job hangs."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import cast

import pytest

from clusterdp.batch.nodes.rendezvous import Ports, address_of, first_host, seconds_of, times_of
from clusterdp.batch.processes.children import Answer
from clusterdp.batch.processes.slurm import Slurm
from clusterdp.slurm.hostlist import expand
from tests.batch.values import job

RECORD = json.loads((Path(__file__).parent.parent / "slurm_facts" / "nodelists.json").read_text())
WRITTEN_BY_SLURM = sorted(
    {row["out"] for row in RECORD["compress"] if row["out"]} | {"r[2-3]n[07-09]c[1,5]", "r[2-3]-n[01-03],m1"}
)
HOSTS = {"localhost": "10.0.0.1 STREAM", "near1": "127.0.1.1 STREAM"}


class Site:
    """Slurm's commands, and getent. left: what squeue prints."""

    def __init__(self, left: str = "") -> None:
        self.left = left
        self.children = self
        self.limit_s: float | None = None

    def ask(self, words: list[str], err: bool = True, limit_s: float | None = None) -> Answer:
        self.limit_s = limit_s
        return Answer(0, self.left)

    def run(self, words: list[str], err: bool = True) -> Answer:
        return Answer(0, HOSTS.get(words[-1], ""))

    def address(self, node: str) -> str:
        return "127.0.0.1"


def site(left: str = "") -> Slurm:
    return cast(Slurm, Site(left))


@pytest.mark.parametrize("nodes", WRITTEN_BY_SLURM)
def test_first_host_returns_the_first_host_of_the_expanded_hostlist(nodes: str) -> None:
    assert first_host(nodes) == expand(nodes)[0]


@pytest.mark.parametrize(
    ("host", "address"),
    [("localhost", "localhost"), ("near1", "127.0.0.1"), ("unknown1", "127.0.0.1")],
    ids=["leads here from outside", "leads to the loopback", "does not resolve"],
)
def test_rendezvous_uses_the_slurm_address_for_loopback_and_unresolvable_hostnames(host: str, address: str) -> None:
    assert address_of(host, site()) == address


def test_rendezvous_skips_a_port_with_a_listener() -> None:
    with socket.socket() as busy:
        for number in range(7, 107):  # until there is one whose port is free
            first = Ports(job(number=number), "127.0.0.1").next()
            try:
                busy.bind(("127.0.0.1", first))
                break
            except OSError:
                continue
        busy.listen()
        assert Ports(job(number=number), "127.0.0.1").next() == first + 1


def test_rendezvous_ports_differ_between_attempts_of_a_job() -> None:
    assert len({Ports(job(restart=restart), "127.0.0.1").next() for restart in range(3)}) == 3


@pytest.mark.parametrize(
    ("left", "seconds"),
    [("5:00", 300), ("08:09", 489), ("1:00:00", 3600), ("2-03:04:05", 183845), ("UNLIMITED", None), ("", None)],
)
def test_job_end_time_is_computed_from_the_time_left_in_squeue(left: str, seconds: int | None) -> None:
    assert seconds_of(left) == seconds
    expected = None if seconds is None else 1000 + seconds
    assert times_of(job(), site(f"{left} N/A N/A"), "", 1000.5)[0] == expected


def test_queue_and_start_times_are_dropped_if_either_is_unknown() -> None:
    assert times_of(job(), site("5:00 10 20"), "99", 0) == (99, 10, 20)
    assert times_of(job(), site("5:00 N/A 20"), "", 0) == (300, None, None)


@pytest.mark.parametrize(("end", "limit_s"), [("99", 10), ("", None)])
def test_squeue_timeout_is_set_only_if_the_end_time_is_known(end: str, limit_s: float | None) -> None:
    slurm = Site("5:00 10 20")
    times_of(job(), cast(Slurm, slurm), end, 0)
    assert slurm.limit_s == limit_s
