"""Run a function on several ranks: real processes, gloo over loopback, and nothing left behind.

A server that has torch loaded forks the ranks, so that a gang starts in a tenth of a second instead of three.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.forked import quick_to_start


class Gang:
    """`with Gang(4, function, *args) as gang: results = gang.results()`; the function gets rank and size first."""

    def __init__(self, size: int, function: Callable[..., Any], *args: Any):
        os.environ["OMP_NUM_THREADS"] = "1"  # before the server starts
        self._folder = tempfile.TemporaryDirectory()
        pipes = [quick_to_start.Pipe(duplex=False) for _ in range(size)]
        self._ends = [end for end, _ in pipes]
        self.processes = [
            quick_to_start.Process(
                target=_main, args=(rank, size, self._folder.name, send, function, args), daemon=True
            )
            for rank, (_, send) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, send in pipes:
            send.close()

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()
            process.close()
        for end in self._ends:
            end.close()
        self._folder.cleanup()

    def results(self, timeout: float = 120) -> list[Any]:
        """What the function returned on each rank; what it raised on any is an AssertionError."""
        answers = [_answer(end, timeout) for end in self._ends]
        failed = [f"rank {rank}: {answer[1]}" for rank, answer in enumerate(answers) if answer[0] != "returned"]
        assert not failed, "\n".join(failed)
        return [answer[1] for answer in answers]

    def join(self, timeout: float = 120) -> None:
        for process in self.processes:
            process.join(timeout)
            assert process.exitcode is not None, "a rank hangs"


def _answer(end: Connection, timeout: float) -> tuple[str, Any]:
    if not wait([end], timeout):
        return "silent", f"no answer in {timeout} s"
    try:
        return end.recv()  # type: ignore[no-any-return]
    except EOFError:
        return "dead", "it died without an answer"


def on_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    with Gang(size, function, *args) as gang:
        return gang.results()


def _end_with_the_tests() -> None:
    """A rank that waits for others in a collective would outlive tests that are killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _main(rank: int, size: int, folder: str, send: Connection, function: Callable[..., Any], args: Any) -> None:
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        send.send(("returned", function(rank, size, *args)))
    except BaseException:
        send.send(("raised", traceback.format_exc()))
    finally:
        send.close()
        os._exit(0)  # destroying the group would wait for ranks that a test has killed
