"""The joint checks of the nodes: which nodes come, whether the clocks agree, and whether an all-reduce works.

Rank 0 serves the store. Rank 0 runs on the first node, where the batch script runs and to which MASTER_ADDR points.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from clusterdp.train.preflight.own_checks import NodeFinding, tell

CONNECT_S = 20.0  # seconds for a connection; TCP repeats a lost SYN after 1, 3, 7 and 15 s
ARRIVAL_S = 120.0  # seconds; torch may load from a cold NFS in a minute on one node, and at once on another
ALL_REDUCE_S = 60.0  # seconds for NCCL's start, which takes some seconds, and for 4 MB, which take milliseconds
LEAVE_S = 10.0  # seconds within which a node must leave the meeting
SLOW_CLOCK_S = 1.0  # beyond this difference, times in logs of several nodes mislead
DEAD_CLOCK_S = 60.0  # beyond this difference, NTP does not run on a node, and leases and certificates fail, too
SLOW_MB_PER_S = 50.0  # less than half of 1 Gb/s Ethernet, the slowest network that is used for training
NUMBERS = 1 << 20  # float32
ON_GPU = 16  # a GPU sends this many times 4 MB: on a fast network, 4 MB take less time than the start of NCCL's kernels
TRIES = 3


@dataclass(frozen=True)
class MeetingPlace:
    nodes: Sequence[str]  # by rank
    rank: int
    address: str
    port: int

    @property
    def others(self) -> range:
        return range(1, len(self.nodes))


def reach(place: MeetingPlace) -> Iterator[NodeFinding]:
    try:
        socket.create_connection((place.address, place.port), CONNECT_S).close()
    except ConnectionRefusedError:
        pass  # the host answers, but rank 0 does not listen yet
    except OSError as error:
        reason = error.strerror or str(error)
        yield NodeFinding(f"cannot reach MASTER_ADDR {place.address}:{place.port}: {reason}")


def clock(told: float, now: float) -> Iterator[NodeFinding]:
    """Compares this node's clock with the first node's. told: the time on the first node, received within
    milliseconds."""
    off = now - told
    if abs(off) > SLOW_CLOCK_S:
        direction = "ahead of" if off > 0 else "behind"
        yield NodeFinding(f"its clock is {abs(off):.0f} s {direction} the first node's", fatal=abs(off) > DEAD_CLOCK_S)


def meet(place: MeetingPlace, failed: bool) -> Iterator[NodeFinding]:
    """Meets the other nodes. failed: whether this node has already failed a check; it takes part only so that no node
    waits for it, and no all-reduce follows."""
    try:
        store = _open_store(place)
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        yield NodeFinding(f"nobody serves MASTER_ADDR {place.address}:{place.port}: {said}", node=place.nodes[0])
        return
    store.set(f"arrived/{place.rank}", f"{'failed' if failed else 'ok'} {_gpus()}")
    if place.rank == 0:
        yield from _receive(store, place)
    try:
        told, go = store.get("go").decode().split()
    except RuntimeError:
        yield NodeFinding(f"has not let the others begin within {2 * ARRIVAL_S:.0f} s", node=place.nodes[0])
        return
    yield from clock(float(told), time.time())
    if go == "yes":
        yield from _all_reduce(store, place)
        yield from _leave(store, place)
    elif place.rank:
        store.set(f"heard/{place.rank}", "")


def _open_store(place: MeetingPlace) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        place.address,
        place.port,
        len(place.nodes),
        place.rank == 0,
        timedelta(seconds=ARRIVAL_S),
        wait_for_workers=False,
    )
    store.set_timeout(timedelta(seconds=2 * ARRIVAL_S))  # rank 0 may come late, and then waits for other ranks
    return store


def _receive(store: Any, place: MeetingPlace) -> Iterator[NodeFinding]:
    missing = _await(store, place.others, "arrived", ARRIVAL_S)
    if len(missing) == len(place.others) > 1:
        yield NodeFinding(f"no other node has reached it within {ARRIVAL_S:.0f} s")
    for rank in missing:
        yield NodeFinding(f"did not come to the all-reduce within {ARRIVAL_S:.0f} s", node=place.nodes[rank])
    ranks = [rank for rank in range(len(place.nodes)) if rank not in missing]
    words = {rank: store.get(f"arrived/{rank}").decode().split() for rank in ranks}
    blind = [rank for rank, (_, gpus) in words.items() if gpus == "0"]
    blind = blind if len(blind) < len(ranks) else []  # if no node has a GPU, the training runs on CPUs
    for rank in blind:
        yield NodeFinding("torch sees no GPU there, but on other nodes it does", node=place.nodes[rank])
    well = not missing and not blind and all(word == "ok" for word, _ in words.values())
    store.set("go", f"{time.time()} {'yes' if well else 'no'}")
    if not well:
        _await(store, ranks[1:], "heard", LEAVE_S)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _await(store: Any, ranks: Sequence[int], word: str, seconds: float) -> list[int]:
    """Waits until these ranks have written `word` to the store. Returns the ranks that have not written it."""
    deadline = time.monotonic() + seconds
    missing = []
    for rank in ranks:
        try:
            store.wait([f"{word}/{rank}"], timedelta(seconds=max(0.1, deadline - time.monotonic())))
        except RuntimeError:
            missing.append(rank)
    return missing


def _all_reduce(store: Any, place: MeetingPlace) -> Iterator[NodeFinding]:
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a time-out then raises an error, and does not kill the process
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    try:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=PrefixStore("all-reduce", store),
            rank=place.rank,
            world_size=len(place.nodes),
            timeout=timedelta(seconds=ALL_REDUCE_S),
        )
        dist.all_reduce(torch.ones(1, device=device))  # the first all-reduce makes the connections
        numbers = torch.full((NUMBERS * (ON_GPU if on_gpu else 1),), float(place.rank + 1), device=device)
        dist.all_reduce(numbers)
        right = bool((numbers == sum(range(len(place.nodes) + 1))).all().item())
        rate = max(_rate(torch.ones_like(numbers)) for _ in range(TRIES))  # the first all-reduce loaded NCCL's kernels
    except RuntimeError as error:
        store.set("broken", "")
        yield NodeFinding(f"the all-reduce failed: {str(error).splitlines()[0]}", fatal=False)
        return
    mb = numbers.nbytes / 1e6
    if not right:
        yield NodeFinding("the all-reduce gave a wrong sum", node="-")
    if rate < SLOW_MB_PER_S:
        yield NodeFinding(f"the all-reduce of {mb:.0f} MB ran at {rate:.1f} MB/s", fatal=False)
    tell(f"{place.nodes[place.rank]}: all-reduce of {mb:.0f} MB: {rate:.0f} MB/s")


def _rate(numbers: Any) -> float:
    """Returns the rate of an all-reduce in MB/s. Collective."""
    import torch.distributed as dist

    began = time.monotonic()
    dist.all_reduce(numbers)
    numbers[0].item()  # item() waits for the GPU
    return float(numbers.nbytes / 1e6 / (time.monotonic() - began))


def _leave(store: Any, place: MeetingPlace) -> Iterator[NodeFinding]:
    """Leaves the meeting. Rank 0, which serves the store, leaves last, and reports the nodes that do not leave."""
    if place.rank != 0:
        store.set(f"left/{place.rank}", "")
        return
    stuck = _await(store, place.others, "left", LEAVE_S)
    for rank in stuck:
        yield NodeFinding("did not come out of the all-reduce", node=place.nodes[rank])
    if not stuck and store.check(["broken"]):
        yield NodeFinding("the all-reduce failed, and on which node is not known", node="-")
