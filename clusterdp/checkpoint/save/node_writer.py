"""NodeWriter: writes one rank's part of the file of its node.

No rank waits for another one. The first byte of a rank's own state is written last, and is not zero: a rank that then
finds this byte of all ranks of its node is the last one (or one of two that end together), and syncs the file for all.
Only this rank reports the header, and rank 0 commits no file without it. If each rank synced the file, each would wait
for the bytes of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from clusterdp.checkpoint.errors import not_saved
from clusterdp.checkpoint.format.checksum import checksums
from clusterdp.checkpoint.format.layout import HEADER, node_name
from clusterdp.checkpoint.format.manifest import FileRecord, Section
from clusterdp.checkpoint.format.node_file import NodeFile, Room
from clusterdp.checkpoint.save.writer import RankWriter, Staged, in_pieces

_MARK = memoryview(b"{")  # the JSON of a rank's own state begins with it


class NodeWriter(RankWriter):
    def __init__(self, room: Room, *args: Any):
        super().__init__(*args)
        self.room = room

    def _write(self, staged: Staged, *, sync: bool) -> dict[str, FileRecord]:
        files, (slice_file, rank_file, local_file) = self._files(staged), self._names()
        if staged.flat is not None:
            files[slice_file] = staged.slice[HEADER:]  # the node's file has one header
            spans = {rank: staged.flat.span(rank, self.world_size) for rank in self.ranks.beside}
            sizes = {rank: stop - start for rank, (start, stop) in spans.items()}
        else:
            sizes = {rank: self.room.pieces[rank] if self.room.pieces else 0 for rank in self.ranks.beside}
        note = {"format": "clusterdp", "token": self.token, "world_size": str(self.world_size)}
        file = NodeFile.of(self.token, self.ranks.node, sizes, self.room.own, note)
        places: dict[str, int] = {}
        if len(files[slice_file]) == sizes[self.rank]:
            places[slice_file] = file.slices[self.rank]
        room, local = self.room.own, len(staged.local or b"")
        if local and local + len(staged.rank_file) <= room:
            room -= local
            places[local_file] = file.own[self.rank] + room
        if len(staged.rank_file) <= room:
            files[rank_file] = memoryview(staged.rank_file.ljust(room))
            places[rank_file] = file.own[self.rank]
        with ThreadPoolExecutor(1, thread_name_prefix="checksum") as pool:
            sums = {name: pool.submit(checksums, files[name]) for name in places}
            is_last = self._write_beside(file, [(places[name], files[name]) for name in places], sync)
            sections = {name: Section(file.node, start, file.name, file.total) for name, start in places.items()}
            records = {name: FileRecord(len(files[name]), sums[name].result(), sections[name]) for name in places}
        if is_last:
            header = Section(file.node, 0, file.name, file.total)
            records[file.name] = FileRecord(len(file.head), checksums(memoryview(file.head)), header)
        rest = {name: data for name, data in files.items() if name not in places}
        return {**records, **(self._write_files(rest) if rest else {})}

    def _write_beside(self, file: NodeFile, parts: Iterable[tuple[int, memoryview]], sync: bool) -> bool:
        """Writes these parts, and syncs the file if the others have written theirs, or if `sync` is True. Returns
        whether the others have."""
        path, own = f"{self.folder}/{file.name}", file.own[self.rank]
        parts = [(start + 1, data[1:]) if start == own else (start, data) for start, data in parts]
        if self.rank == self.ranks.beside[0]:
            parts.append((0, memoryview(file.head)))

        def write() -> None:
            for start, data in (*parts, (own, _MARK)):
                self.storage.write_at(path, file.total, start, in_pieces(data))

        try:
            self._in_folder(write)
            is_last = self._all_have_written(path, file)
            if is_last or sync:
                self.storage.sync(path)
                self.storage.sync_folder(self.folder)
        except OSError as error:
            raise not_saved(f"{self.storage.url}/{path}", error) from error
        return is_last

    def _all_have_written(self, path: str, file: NodeFile) -> bool:
        marks = bytearray(len(file.own))
        with self.storage.open(path) as reader:
            for number, start in enumerate(file.own.values()):
                reader.read_at(start, memoryview(marks)[number : number + 1])
        return all(marks)

    def discard(self) -> None:
        with suppress(OSError):
            self.storage.remove(f"{self.folder}/{node_name(self.token, self.ranks.node)}")
        super().discard()
