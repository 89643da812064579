"""Control: this rank's connection to its node's agent, through which the ranks agree, and learn that one has failed.

The agents (batch/nodes/agent.py) carry what all ranks send. A rank has one socket, whatever the number of ranks. The
main thread starts each exchange, on all ranks in the same order. A thread reads the results, and waits in the kernel.
Once a second it looks whether the agent is stopped.

A second thread ends this rank when another one fails. Gloo notices the closed connections of a dead rank at the next
collective. NCCL does not notice them on every transport: the other ranks would wait in a kernel until NCCL's timeout. A
rank that loads data for minutes notices nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from clusterdp import procfs
from clusterdp.batch.nodes.messages import BEAT_S, ENTRY, LATE_S, LONG, MISSED, RANK, Kind, message, split
from clusterdp.train.output.say import say

MOST = 400  # characters of the text of a failure
GRACE_S = 1.0  # seconds in which the main thread may report a failure itself
NEWS_S = 2.0  # seconds in which the agents pass on that a rank has failed, at most


class LostRanks(RuntimeError):
    """A rank has failed or ended while this rank waits for it. `Connection closed` is how gloo reports it, too."""


class Control:
    """failure: the first failure, such as `rank 3: ValueError: ...`; None if there is none. watch: of
    hang_watch.prepare()."""

    def __init__(
        self, line: socket.socket, rank: int, world_size: int, timeout_s: float, watch: tuple[Any, Any] | None = None
    ):
        self.rank, self.world_size = rank, world_size
        self.failure: str | None = None
        self._left: int | None = None  # a rank that has ended in order
        self._line, self.timeout_s = line, timeout_s
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s), 0))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(BEAT_S), 0))
        self._number = 0  # of the last exchange
        self._results: dict[int, bytes] = {}
        # A lock, because a wait in it has this file's frame as its innermost one: the hang watch knows by it that the
        # rank waits for others.
        self._news = threading.Lock()
        self._known = threading.Event()  # set with `failure`
        self._closed = threading.Event()
        if watch is None:
            self._send(Kind.HELLO, 0, RANK.pack(rank))
        else:
            order, files = watch
            socket.send_fds(line, [message(Kind.HELLO, 0, RANK.pack(rank))], files)
            self._send(Kind.WATCH, 0, json.dumps(order._asdict()).encode())
        threading.Thread(target=self._read, name="clusterdp-control", daemon=True).start()

    def begin(self, values: Sequence[int]) -> int:
        """Starts an exchange of integers of 64 bits. Returns its number, for result(). Collective."""
        self._number += 1
        self._send(Kind.REDUCE, self._number, array("q", values).tobytes())
        return self._number

    def is_done(self, number: int) -> bool:
        """Returns whether result() would not wait."""
        return number in self._results

    def result(self, number: int) -> list[int]:
        """Returns each value's maximum over all ranks. Waits until all ranks have begun this exchange. Raises LostRanks
        if one cannot, and RuntimeError after the group's time-out."""
        return array("q", self._wait(number)).tolist()

    def gather(self, data: bytes) -> list[bytes] | None:
        """Returns every rank's data in rank order, on rank 0, which waits for it; None on the others. Collective.
        Raises as result() does."""
        self._number += 1
        self._send(Kind.GATHER, self._number, ENTRY.pack(self.rank, len(data)) + data)
        if self.rank != 0:
            return None
        whole, found, at = self._wait(self._number), {}, 0
        while at < len(whole):
            rank, size = ENTRY.unpack_from(whole, at)
            at += ENTRY.size + size
            found[rank] = whole[at - size : at]
        return [found[rank] for rank in range(self.world_size)]

    def exchange(self, data: bytes, conclude: Callable[[list[bytes]], bytes]) -> bytes:
        """Returns on all ranks what `conclude` makes of all ranks' data on rank 0. Collective. Raises as result()
        does."""
        parts = self.gather(data)
        self._number += 1
        if parts is not None:
            self._send(Kind.SHARE, self._number, conclude(parts))
        return self._wait(self._number)

    def fail(self, said: str) -> None:
        """Tells all ranks that this one fails. The first failure counts."""
        with suppress(OSError):  # the agent is gone, and so are the ranks of this node
            self._line.sendall(message(Kind.FAILED, 0, RANK.pack(self.rank) + said[:MOST].encode(errors="replace")))

    def first_failure(self, *, is_certain: bool = False) -> str | None:
        """Returns the first failure; None if there is none. is_certain: there is one, and is waited for."""
        self._known.wait(NEWS_S if is_certain else 0.0)
        return self.failure

    def end_with_others(self) -> None:
        """From now on, ends this rank when another fails."""
        threading.Thread(target=self._end_with_others, daemon=True).start()

    def _end_with_others(self) -> None:
        self._known.wait()
        if not self._closed.wait(GRACE_S):
            say(f"clusterdp: ending rank {self.rank}, because another failed: {self.failure}", error=True)
            leave_now(1)  # the main thread may be blocked in C for ever

    def close(self) -> None:
        """Leaves the others, after which this rank takes part in no exchange."""
        self._closed.set()
        with suppress(OSError):
            self._line.sendall(message(Kind.LEFT, 0, RANK.pack(self.rank)))
            self._line.shutdown(socket.SHUT_RDWR)  # what is sent already is read

    def _send(self, kind: int, number: int, body: bytes) -> None:
        try:
            self._line.sendall(message(kind, number, body))
        except OSError as error:
            self._known.wait(NEWS_S)
            raise LostRanks(self._lost() or f"Connection closed: {error.strerror}") from None

    def _wait(self, number: int) -> bytes:
        deadline = time.monotonic() + self.timeout_s
        while number not in self._results:
            if lost := self._lost():
                raise LostRanks(lost)
            if not self._news.acquire(timeout=max(0.0, deadline - time.monotonic())) and time.monotonic() > deadline:
                # the words of gloo, by which the batch program and `clusterdp why` know a time-out
                raise RuntimeError(f"Timed out waiting {1000 * self.timeout_s:.0f}ms for the other ranks to agree")
        return self._results.pop(number)

    def _lost(self) -> str:
        if self.failure is not None:
            return f"Connection closed: {self.failure}"
        return "" if self._left is None else f"Connection closed: rank {self._left} has ended"

    def _read(self) -> None:
        data = bytearray()
        agent, looked, stopped = 0, time.monotonic(), 0
        while True:
            try:
                more = self._line.recv(LONG)
            except BlockingIOError:
                is_late, looked = time.monotonic() > looked + BEAT_S + LATE_S, time.monotonic()
                stopped = stopped + 1 if procfs.state(agent) in ("T", "t") and not is_late else 0
                if stopped > MISSED:
                    with suppress(OSError):  # its neighbours in the tree see the end of their connections
                        os.kill(agent, signal.SIGKILL)
                continue
            except OSError:
                more = b""
            if not more:
                break
            looked, stopped = time.monotonic(), 0
            data += more
            for kind, number, body in split(data):
                if kind == Kind.HELLO:
                    agent = number
                elif kind == Kind.LEFT:
                    (self._left,) = RANK.unpack(body)
                elif kind == Kind.FAILED:
                    said = body[RANK.size :].decode(errors="replace")
                    self._note(RANK.unpack_from(body)[0], plain(said))
                else:
                    self._results[number] = body
            self._wake()
        self._note(self.rank, "the agent of this node has ended")
        self._line.close()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is free already
            self._news.release()

    def _note(self, rank: int, said: str) -> None:
        if self.failure is None and not self._closed.is_set():
            self.failure = f"rank {rank}: {said}"
            self._known.set()
            self._wake()


def leave_now(code: int) -> NoReturn:
    """Kills the DataLoader workers and ends this process without teardown, which could wait for ranks that are gone.
    The kernel then closes the process's sockets, and gloo on the other ranks notices the closed connections.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def plain(text: str) -> str:
    """Returns the text as one short line without control characters, safe for a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MOST])
