"""Keepers of made-up nodes, as a job's step starts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterdp.batch.nodes import keeper
from tests.waiting import wait_for


class Node:
    """A node with a keeper."""

    def __init__(self, key: str, name: str, folder: Path, *more: str, **variables: str):
        self.key, self.name = key, name
        self.environ = {keeper.KEY: f"{key} {folder}", "SLURMD_NODENAME": name, **variables}
        words = [sys.executable, "-I", keeper.__file__, str(folder), *more]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=self.environ)
        wait_for("the keeper", self.answers, 10, every_s=0.02)

    def answers(self) -> bool:
        try:
            keeper.connect(self.key, self.name).close()
        except ConnectionRefusedError:
            return False
        return True

    def order(self, words: str) -> str:
        """Writes a line to the keeper's stdin. Returns its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{words}\n".encode())
        self.process.stdin.flush()
        lines = (line.decode().strip() for line in self.process.stdout)
        return next(line for line in lines if not line.startswith("beat "))

    def end(self) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)


@contextmanager
def keepers(folder: Path, *names: str, key: str) -> Iterator[list[Node]]:
    nodes = [Node(key, name, folder) for name in names]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.end()
