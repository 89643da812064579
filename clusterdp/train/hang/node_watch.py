"""NodeWatch: the watchers of a node's ranks, each a thread of the node's agent (batch/nodes/agent.py), whose process
begins here. Threads, because a look at a silent rank takes seconds, and a shared file system may take minutes.

A rank sends its WatchOrder, and the descriptors of its page, its stacks and its output. Notes go up the tree to the
root, where Decision reads them. If the attempt has hung, each agent kills the ranks of its node, because they may be
stopped or hold the GIL.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from clusterdp.batch.nodes import agent
from clusterdp.batch.nodes.messages import LONG, Kind, message, split
from clusterdp.train.hang.watched_rank import WatchedRank, WatchOrder
from clusterdp.train.hang.watcher import Watcher

if TYPE_CHECKING:
    from clusterdp.train.hang.decision import Decision
    from clusterdp.train.hang.note import Note

END_S = 10.0  # limit of the seconds in which the watchers of ended ranks must end


class NodeWatch:
    """line: the agent's end of the connection between its thread and those of the watchers."""

    def __init__(self) -> None:
        self.line, self._line = socket.socketpair()
        self._sending = threading.Lock()
        self._watchers: dict[int, Watcher] = {}  # of the ranks that have not ended
        self._threads: list[threading.Thread] = []
        self._decision: Decision | None = None  # of the root

    def begin(self, body: bytes, files: Sequence[int]) -> None:
        """Watches a rank, from the agent's thread. Raises ValueError if something is missing."""
        if len(files) != 3:
            raise ValueError
        self._order = WatchOrder(**json.loads(body))
        self._watchers[self._order.rank] = watcher = Watcher(WatchedRank(self._order, *files), self._send_note)
        if not self._threads:
            self._start(self._read)
        self._start(watcher.run)

    def end(self, rank: int, *, in_order: bool) -> None:
        """Ends the watcher of a rank, if it has one: the rank has ended."""
        if rank in self._watchers:
            self._watchers.pop(rank).end(in_order=in_order)

    def close(self) -> None:
        for thread in self._threads[1:]:
            thread.join(END_S)

    def _start(self, target: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=target, daemon=True))
        self._threads[-1].start()

    def _send_note(self, rank: int, note: Note | None) -> None:
        self._send(Kind.NOTE, rank, json.dumps(note and vars(note)))

    def _send(self, kind: int, rank: int, text: str) -> None:
        with self._sending:
            self._line.sendall(message(kind, rank, text.encode()))

    def _say(self, text: str) -> None:
        """Prints to the log of rank 0, on the root's node."""
        if watcher := self._watchers.get(0):
            watcher.rank.say(text)

    def _read(self) -> None:
        data = bytearray()
        while True:
            wait_s = self._decision.pause_s if self._decision is not None else None
            if select.select([self._line], [], [], wait_s)[0]:
                data += self._line.recv(LONG)
                for kind, rank, body in split(data):
                    if kind == Kind.HUNG:
                        self._kill(body.decode())
                    else:
                        self._take(rank, json.loads(body))
            if self._decision is not None:
                self._decision.look()

    def _take(self, rank: int, values: dict[str, Any] | None) -> None:
        from clusterdp.train.hang.decision import Decision
        from clusterdp.train.hang.note import Note

        if self._decision is None:
            self._decision = Decision(self._order, self._say, partial(self._send, Kind.HUNG, 0))
        self._decision.take(rank, Note(**values) if values is not None else None)

    def _kill(self, why: str) -> None:
        for rank, watcher in [*self._watchers.items()]:
            watcher.rank.say(f"clusterdp: ending rank {rank}: {why}")
            watcher.rank.keep_dump()  # before the step, and this process with it, ends
            watcher.rank.kill()


def main() -> int:
    return agent.main(NodeWatch())
