"""Partners: a second place for each rank's files of a copy, in the memory of another node (SCR's PARTNER scheme).

Rank r's files are also in the memory of the node of rank r + RankGroup.stride. If another node takes the place of a
lost one, its ranks get their files back from their partners, and then restore as if no node had been lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from clusterdp.checkpoint.errors import not_saved
from clusterdp.checkpoint.format.layout import (
    local_name,
    manifest_name,
    rank_name,
    slice_name,
    token_of_file,
    token_of_manifest,
)
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.checkpoint.state.tree import memory_of
from clusterdp.errors import CheckpointError
from clusterdp.storage import MemoryStorage
from clusterdp.storage.memory import HELD

PIECE = 4 << 20  # bytes of a message
_FILES = 4  # of a rank in a copy, at most
_MISSING, _UNREADABLE = -1, -2  # sizes in place of a file's


class Partners:
    """The files that this rank keeps for another one, and those that another one keeps for it."""

    def __init__(self, storage: MemoryStorage, ranks: RankGroup):
        self._storage, self._ranks = storage, ranks
        self._partner = (ranks.rank + ranks.stride) % ranks.size
        self.of = (ranks.rank - ranks.stride) % ranks.size  # the rank whose partner this rank is

    @staticmethod
    def are_possible(storage: MemoryStorage, ranks: RankGroup) -> bool:
        """Returns whether a node may be replaced, and each rank has a partner."""
        return storage.may_lose_nodes and ranks.stride > 0

    def exchange(self, folder: str, token: str) -> None:
        """Sends this rank's files of a copy to its partner, and keeps those of another rank. Called on all ranks, also
        if the commit has failed: another rank waits for these files. Any thread may call it, beside collectives.

        Raises CheckpointError if files could not be read or kept."""
        sent = self._send(self._partner, self._names(folder, token, self._ranks.rank))
        try:
            self._receive(self.of, [f"{HELD}/{name}" for name in self._names(folder, token, self.of)])
        finally:
            self._wait(sent)

    def bring_back(self) -> None:
        """Collective. Gives ranks on a new node their files of each copy, as far as their partners have them. A copy
        that stays incomplete is not restored."""
        for copy, missing in self._ranks.agree(report=self._present(), conclude=self._missing):
            folder, _, token = copy.partition("/")
            sent = []
            if self.of in missing:
                sent = self._send(self.of, [f"{HELD}/{name}" for name in self._names(folder, token, self.of)])
            if self._ranks.rank in missing:
                with suppress(CheckpointError):
                    self._receive(self._partner, self._names(folder, token, self._ranks.rank))
            self._wait(sent)

    def _names(self, folder: str, token: str, rank: int) -> list[str]:
        """Returns the names of a rank's files, in the order in which they are written."""
        names = [slice_name(token, rank, self._ranks.size), local_name(token, rank), rank_name(token, rank)]
        return [f"{folder}/{name}" for name in [*names, *([manifest_name(token)] if rank == 0 else [])]]

    def _present(self) -> list[str]:
        """Returns the copies, as <folder>/<token>, of which this node has this rank's files."""
        found = []
        with suppress(OSError):  # without a keeper there are no files
            for name in self._storage.names():
                folder, _, file = name.rpartition("/")
                token = token_of_file(file) or token_of_manifest(file) or ""
                if name == self._names(folder, token, self._ranks.rank)[-1]:
                    found.append(f"{folder}/{token}")
        return found

    @staticmethod
    def _missing(reports: Sequence[list[str]]) -> list[tuple[str, list[int]]]:
        """Returns, on rank 0, the copies that some ranks have and others miss, and those that miss them."""
        copies = sorted({copy for report in reports for copy in report})
        missing = [(copy, [rank for rank, report in enumerate(reports) if copy not in report]) for copy in copies]
        return [(copy, ranks) for copy, ranks in missing if ranks]

    def _send(self, to: int, names: Sequence[str]) -> list[Any]:
        """Begins to send files to a rank: their sizes, and then their bytes."""
        contents: list[memoryview | None] = []
        sizes = torch.full((_FILES,), _MISSING, dtype=torch.int64)
        try:
            for number, name in enumerate(names):
                contents.append(self._content(name))
                sizes[number] = _MISSING if contents[-1] is None else len(contents[-1])
        except Exception:  # whatever it is: the other rank waits
            contents = []
            sizes.fill_(_UNREADABLE)
        sent = [self._ranks.send(sizes, to)]
        for content in filter(None, contents):
            data = torch.frombuffer(content, dtype=torch.uint8)
            sent += [self._ranks.send(data[start : start + PIECE], to) for start in range(0, len(data), PIECE)]
        return sent

    def _content(self, name: str) -> memoryview | None:
        """Returns the bytes of a file, without a copy. Not each rank has tensors of its own, and so a local file."""
        try:
            return self._storage.mapped(name)
        except FileNotFoundError:
            if ".local." in name:
                return None
            raise

    def _receive(self, source: int, names: Sequence[str]) -> None:
        """Receives files, and keeps them. If one cannot be kept, receives the others nevertheless, because the sender
        waits for that. Raises CheckpointError."""
        sizes, buffer = torch.empty(_FILES, dtype=torch.int64), torch.empty(PIECE, dtype=torch.uint8)
        self._ranks.receive(sizes, source)
        failure: OSError | None = None
        if int(sizes[0]) == _UNREADABLE:
            raise CheckpointError(f"rank {source} cannot read its files in {self._storage.url}")
        for name, size in zip(names, sizes.tolist(), strict=False):
            if size == _MISSING:
                continue
            pieces = self._pieces(source, size, buffer)
            try:
                if failure is None:
                    self._storage.write(name, pieces)
            except FileExistsError:  # an attempt that was cut off has received it
                pass
            except OSError as error:
                failure = error
            deque(pieces, maxlen=0)
        if failure is not None:
            raise not_saved(f"{self._storage.url}/{names[0]}", failure) from failure

    def _pieces(self, source: int, size: int, buffer: torch.Tensor) -> Iterator[memoryview]:
        for start in range(0, size, PIECE):
            piece = buffer[: min(PIECE, size - start)]
            self._ranks.receive(piece, source)
            yield memory_of(piece)

    def _wait(self, sent: Sequence[Any]) -> None:
        with self._ranks.contact():
            for work in sent:
                work.wait()
