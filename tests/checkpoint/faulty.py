"""A storage whose calls fail where a test wants them to, and what is saved there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from clusterdp.checkpoint import Checkpointer, CheckpointError, Commit
from clusterdp.storage import LocalStorage
from tests.checkpoint.training import Counter


class Faulty(LocalStorage):
    """Every call passes points at which it can fail: before, and where that is something else, in the middle and after
    (the bytes are there, and their fsync has failed)."""

    def __init__(self, path: Path | str):
        super().__init__(path)
        self._lock = threading.Lock()
        self.disarm()

    def arm(self, point: str, after: int, times: int, fail: Callable[[], None]) -> None:
        """When such a point has been passed so often it fails, and so do the points after it, `times` in all."""
        self._point, self._after, self._times, self._fail = point, after, times, fail
        self.hit: list[str] = []

    def disarm(self) -> list[str]:
        """The points that have failed."""
        hit = getattr(self, "hit", [])
        self.arm("none", 0, 0, lambda: None)
        return hit

    def _pass(self, point: str) -> None:
        with self._lock:
            self._after -= point == self._point
            if self._after >= 0 or not self._times or (not self.hit and point != self._point):
                return
            self._times -= 1
            self.hit.append(point)
        self._fail()

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        self._pass("write")
        super().write(name, self._cut(chunks))
        self._pass("write: fsync")

    def write_at(self, name: str, size: int, start: int, chunks: Iterable[memoryview]) -> None:
        self._pass("write")
        super().write_at(name, size, start, self._cut(chunks))

    def sync(self, name: str) -> None:
        super().sync(name)
        self._pass("write: fsync")

    def _cut(self, chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        for chunk in chunks:
            yield chunk[: len(chunk) // 2]
            self._pass("write: in the middle")
            yield chunk[len(chunk) // 2 :]

    def publish(self, name: str, data: bytes) -> None:
        self._pass("publish")
        super().publish(name, data)
        self._pass("publish: fsync of the folder")


def _hook(name: str) -> Any:
    def call(self: Faulty, *args: Any, **options: Any) -> Any:
        self._pass(name)
        return getattr(LocalStorage, name)(self, *args, **options)

    return call


for _name in ("list", "size", "open", "read", "make_folder", "sync_folder", "remove"):
    setattr(Faulty, _name, _hook(_name))


def state(value: float) -> dict[str, Counter]:
    shared, own = Counter(), Counter(per_rank=True)
    shared.state = {"tensor": torch.full((50_000,), value), "value": value}
    own.state = {"mine": torch.full((9,), value)}
    return {"shared": shared, "own": own}


def fill(live: dict[str, Counter], value: float) -> None:
    for name, counter in state(value).items():
        live[name].load_state_dict(counter.state)


def try_to_save(checkpointer: Checkpointer, step: int, beside: bool) -> tuple[Commit | None, str, int]:
    """The commit or what was raised, and in which call."""
    calls = 0
    try:
        if not beside:
            return checkpointer.save(step), "", 0
        checkpointer.async_save(step)
        while True:
            calls += 1
            if (commit := checkpointer.step()) is not None:
                return commit, "", calls
    except CheckpointError as error:
        return None, f"{type(error).__name__}: {error}", calls


def until_clean() -> None:
    """Until this rank has given back what it can."""
    for thread in threading.enumerate():
        if thread.name == "clusterdp-discard":
            thread.join()


def fail_with(number: int) -> None:
    raise OSError(number, os.strerror(number))
