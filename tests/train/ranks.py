"""Ranks for tests: real processes that meet over gloo, forked from a server that has torch in memory already."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.forked import quick_to_start
from tests.ports import free_port

PATIENCE_S = 150.0  # for machines that are busy with other things; pytest's own limit comes later


def rank_environ(rank: int, size: int, port: int) -> dict[str, str]:
    """What a batch script exports to a task."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def wait_until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (value := true()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.01)
    return value


class Ranks:
    """Processes that run program(*args), a function of tests.train.programs; `answers` are what they returned."""

    def __init__(
        self, folder: Path, program: Callable[..., Any], *args: Any, size: int = 4, env: dict[str, str] | None = None
    ):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.processes = [
            quick_to_start.Process(
                target=_body, args=(folder, rank, {**rank_environ(rank, size, port), **(env or {})}, program, args)
            )
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def join(self) -> list[int | None]:
        """The exit codes."""
        for process in self.processes:
            process.join(PATIENCE_S)
        assert all(p.exitcode is not None for p in self.processes), f"ranks hang:\n{self.log}"
        return [process.exitcode for process in self.processes]

    def reach(self, true: Callable[[], Any], what: str) -> None:
        """Wait for something that they do; fails at once if one of them has ended instead."""
        wait_until(lambda: true() or any(p.exitcode is not None for p in self.processes), what)
        assert true(), f"{what}: a rank has ended before\n{self.log}"

    @property
    def answers(self) -> list[Any]:
        assert self.join() == [0] * len(self.processes), self.log
        return [json.loads((self.folder / f"answer-{rank}").read_text()) for rank in range(len(self.processes))]

    @property
    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def rank_log(self, rank: int) -> str:
        return (self.folder / f"log-{rank}").read_text()

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


@contextmanager
def running(folder: Path, program: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Ranks]:
    """None is left behind, whatever happens."""
    ranks = Ranks(folder, program, *args, **options)
    try:
        yield ranks
    finally:
        ranks.kill()


def _body(folder: Path, rank: int, env: dict[str, str], program: Callable[..., Any], args: tuple[Any, ...]) -> None:
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_", "CLUSTERDP_"))]:
        del os.environ[name]
    os.environ.update(env)
    # Its own children are started as they would be by a task of Slurm, and not from a server of this rank's own, which
    # loads torch once more, and whose children a killed rank would leave behind for good.
    multiprocessing.set_start_method(None, force=True)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    answer = program(*args)
    (folder / f"answer-{rank}").write_text(json.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()


def _die_with_parent() -> None:
    """A pytest that is killed runs no clean-up; nobody would end the ranks then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
