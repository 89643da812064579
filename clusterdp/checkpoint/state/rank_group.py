"""RankGroup: the ranks that save and restore together, and how they agree."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from clusterdp import procfs
from clusterdp.checkpoint.errors import ClaimLost, LostContact, ReplicasDiffer
from clusterdp.checkpoint.state.tree import memory_of
from clusterdp.errors import CheckpointError, DamagedError, StateError

T = TypeVar("T")
FRAME = 512  # bytes of a message that travel with its length
_HEAD = 8  # bytes of the length
_TAG = 20_480  # of messages from one rank to another: a program may use its own, in the same group
_KINDS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind for kind in (CheckpointError, DamagedError, StateError, ClaimLost, ReplicasDiffer)
}


class Control(Protocol):
    """How the ranks exchange small messages, each on all ranks in the same order. Errors are RuntimeErrors."""

    def begin(self, values: Sequence[int]) -> Any:
        """Starts an exchange of integers of 64 bits. Returns what result() takes."""

    def result(self, exchange: Any) -> list[int]:
        """Returns each value's maximum over all ranks."""

    def exchange(self, data: bytes, conclude: Callable[[list[bytes]], bytes]) -> bytes:
        """Returns on all ranks what `conclude` makes of all ranks' data on rank 0."""


class RankGroup:
    """The ranks of a checkpointer. Messages are JSON: nothing is pickled, and NCCL's streams are not touched."""

    def __init__(self, group: dist.ProcessGroup | Control | None = None):
        """Collective. group: the ranks, or the control of all of them. Makes a new group with gloo if the process group
        has no gloo."""
        self.rank, self.size, self.nodes, self.node = 0, 1, 1, 0
        self.beside: Sequence[int] = (0,)  # the ranks on this rank's node, in order
        self.stride = 0  # the least number for which rank r and rank r + stride are on two nodes; 0 if there is none
        self._lost: str | None = None  # the error message of the first lost contact
        if not (dist.is_available() and dist.is_initialized()):
            return
        control = None if group is None or isinstance(group, dist.ProcessGroup) else group
        members = group if isinstance(group, dist.ProcessGroup) else None
        if "gloo" not in str(dist.get_backend_config(members)):
            ranks = dist.get_process_group_ranks(members or dist.group.WORLD)
            members = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self.group = members
        self.rank, self.size = dist.get_rank(members), dist.get_world_size(members)
        self.control = control or Collectives(self.rank, self.size, members)
        if self.size > 1:
            node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
            node += f" {procfs.read('sys/kernel/random/boot_id')}"  # two machines may have the same name
            of_ranks: list[int] = self.agree(report=node, conclude=_numbered)
            self.nodes, self.node, self.stride = max(of_ranks) + 1, of_ranks[self.rank], _stride(of_ranks)
            self.beside = [rank for rank, of_rank in enumerate(of_ranks) if of_rank == self.node]

    @property
    def on_node(self) -> int:
        """The number of ranks on a node, if each node has as many."""
        return -(-self.size // self.nodes)

    def agree(
        self,
        failure: Exception | None = None,
        report: Any = None,
        conclude: Callable[[list[Any]], Any] | None = None,
    ) -> Any:
        """Collective. Either all ranks return the same value, or all raise the same error.

        Every rank passes its error, or its report (JSON values). If no rank has failed, rank 0 calls `conclude` with
        all reports, and every rank returns the result. If a rank or `conclude` has failed, every rank raises the same
        error. On the failed rank, the original error is the cause of this error.
        """

        def concluded(reports: list[Any]) -> dict[str, Any]:
            nonlocal failure
            if failed := self._failure_of([entry["failure"] for entry in reports]):
                return failed
            try:
                return {"conclusion": conclude([entry["report"] for entry in reports]) if conclude else None}
            except Exception as error:
                failure = error
                return _describe(error) or {}

        result = self._exchange({"failure": _describe(failure), "report": report}, concluded)
        if "kind" in result:
            raise _KINDS[result["kind"]](result["message"]) from failure
        return result["conclusion"]

    def _failure_of(self, failures: list[dict[str, str] | None]) -> dict[str, str]:
        """Returns the failure for all ranks: the kind of error of the lowest failed rank, and the messages of the first
        three failed ranks."""
        failed = [(rank, failure) for rank, failure in enumerate(failures) if failure]
        if not failed:
            return {}
        prefix = "rank {}: " if self.size > 1 else ""
        messages = [prefix.format(rank) + failure["message"] for rank, failure in failed[:3]]
        if len(failed) > 3:
            messages.append(f"and {len(failed) - 3} more ranks")
        return {"kind": failed[0][1]["kind"], "message": "; ".join(messages)}

    def are_equal(self, digest: bytes) -> bool:
        """Returns whether all ranks have these 8 bytes."""
        if self.size == 1:
            return True
        number = int.from_bytes(digest, "little") >> 1  # the maximum of the negated numbers is the negated minimum
        with self.contact():
            most, least = self.control.result(self.control.begin([number, -number]))
        return most == -least

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Sends the bytes of rank `source` to all ranks, in place."""
        if self.size > 1 and tensor.numel():
            with self.contact():
                dist.broadcast(tensor, group=self.group, group_src=source)

    def send(self, tensor: torch.Tensor, to: int) -> dist.Work:
        """Begins to send the bytes to a rank, which calls receive(). wait() of the result belongs into contact(). Any
        thread may send and receive, beside collectives."""
        with self.contact():
            found = dist.isend(tensor, dist.get_global_rank(self._world(), to), group=self.group, tag=_TAG)
        assert found is not None
        return found

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Fills the tensor with the bytes that a rank sends."""
        with self.contact():
            dist.recv(tensor, dist.get_global_rank(self._world(), source), group=self.group, tag=_TAG)

    def _world(self) -> dist.ProcessGroup:
        group = self.group or dist.group.WORLD
        assert group is not None
        return group

    @contextmanager
    def contact(self) -> Iterator[None]:
        """Surrounds a collective. If the collective fails, raises LostContact, and raises it at once in every later
        call, without a collective: in one case, a rank waited in the next collective for ever, and the other ranks
        waited for this rank.
        """
        if self._lost is not None:
            raise LostContact(self._lost)
        try:
            yield
        except RuntimeError as error:  # gloo raises RuntimeError when a peer dies or does not answer in time
            self._lost = (
                f"checkpoint: the ranks have lost contact: {error}. Another rank failed first, or waits elsewhere; see "
                "the logs of all."
            )
            raise LostContact(self._lost) from error

    def _exchange(self, message: Any, conclude: Callable[[list[Any]], dict[str, Any]]) -> dict[str, Any]:
        """Returns on all ranks what `conclude` makes of all ranks' messages on rank 0."""
        if self.size == 1:
            return conclude([message])
        with self.contact():
            said = self.control.exchange(
                json.dumps(message).encode(), lambda parts: json.dumps(conclude([*map(json.loads, parts)])).encode()
            )
        found: dict[str, Any] = json.loads(said)
        return found


class Collectives:
    """A Control over a process group with gloo, for programs whose nodes have no agents."""

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None):
        self.rank, self.size, self.group = rank, size, group

    def begin(self, values: Sequence[int]) -> tuple[torch.Tensor, Any]:
        numbers = torch.tensor(values, dtype=torch.int64)
        return numbers, dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group, async_op=True)

    def result(self, exchange: tuple[torch.Tensor, Any]) -> list[int]:
        numbers, work = exchange
        work.wait()
        return [int(number) for number in numbers.tolist()]

    def exchange(self, data: bytes, conclude: Callable[[list[bytes]], bytes]) -> bytes:
        """Two collectives, if each message and the result fit into FRAME bytes, as nearly all do."""
        room = FRAME
        while True:
            frames, said = self._gather(_framed(data, room)), b""
            if self.rank == 0:
                longest = max(map(_length, frames))
                said = b"%d" % longest if longest > room else b" " + conclude([*map(_content, frames)])
            said = self._share(said)
            if said[:1] == b" ":
                return said[1:]
            room = int(said)

    def _gather(self, frame: torch.Tensor) -> list[torch.Tensor]:
        """Returns all ranks' frames on rank 0, and an empty list on other ranks."""
        slots = [torch.empty_like(frame) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(frame, slots, group=self.group, group_dst=0)
        return slots or []

    def _share(self, data: bytes) -> bytes:
        """Returns rank 0's data on all ranks."""
        frame = _framed(data, FRAME)
        dist.broadcast(frame, group=self.group, group_src=0)
        if (length := _length(frame)) > FRAME:
            frame = _framed(data, length)
            dist.broadcast(frame, group=self.group, group_src=0)
        return _content(frame)


def _numbered(names: Sequence[str]) -> list[int]:
    """Returns the number of each rank's node, in the order of the nodes' first ranks."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def _stride(nodes: Sequence[int]) -> int:
    """nodes: the node of each rank."""
    size = len(nodes)
    fit = (n for n in range(1, size) if all(nodes[rank] != nodes[(rank + n) % size] for rank in range(size)))
    return next(fit, 0)


def tried(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Returns (result of `work`, error that `work` raised): RankGroup.agree() sends the error to the other ranks."""
    try:
        return work(), None
    except Exception as error:
        return None, error


class ProgressExchange:
    """The minimum of all ranks' numbers. One call starts the exchange, and the next call reads the result, so that no
    rank waits."""

    def __init__(self, ranks: RankGroup):
        self._ranks = ranks
        self._exchange: Any = None  # the one that is under way

    def exchange(self, number: int) -> int | None:
        """Collective. Returns the minimum of the previous call's numbers; None in the first call."""
        if self._ranks.size == 1:
            return number
        least = self.drain()
        with self._ranks.contact():
            self._exchange = self._ranks.control.begin([-number])
        return least

    def drain(self) -> int | None:
        """Returns the result of the last exchange(), if there was one. Collective: call drain() on all ranks or on
        none."""
        if self._exchange is None:
            return None
        with self._ranks.contact():
            (most,) = self._ranks.control.result(self._exchange)
        self._exchange = None
        return -most


def _describe(failure: Exception | None) -> dict[str, str] | None:
    if failure is None:
        return None
    if isinstance(failure, CheckpointError):
        kind = next(name for name in (type(failure).__name__, "CheckpointError") if name in _KINDS)
        return {"kind": kind, "message": str(failure)}
    message = str(failure) if isinstance(failure, OSError) else f"{type(failure).__name__}: {failure}"
    return {"kind": "CheckpointError", "message": message}


def _framed(data: bytes, room: int) -> torch.Tensor:
    """Returns the number of bytes, and as many of the bytes as there is room for."""
    head = len(data).to_bytes(_HEAD, "little") + data[:room]
    return torch.frombuffer(bytearray(head.ljust(_HEAD + room, b" ")), dtype=torch.uint8)


def _length(frame: torch.Tensor) -> int:
    return int.from_bytes(memory_of(frame)[:_HEAD], "little")


def _content(frame: torch.Tensor) -> bytes:
    return bytes(memory_of(frame)[_HEAD : _HEAD + _length(frame)])
