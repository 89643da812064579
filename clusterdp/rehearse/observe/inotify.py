"""inotify(7): the kernel's events on the files below a folder, on Linux."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MODIFY, CLOSE_WRITE, CLOSE_READ = 0x2, 0x8, 0x10
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
IS_FOLDER = 0x40000000
FOUND = 1 << 40  # our own event, not the kernel's: the file existed before its folder was watched
WATCHED = MODIFY | CLOSE_WRITE | CLOSE_READ | MOVED_FROM | MOVED_TO | CREATE | DELETE
EVENT = struct.Struct("iIII")
MOST_FOLDERS = 2000  # maximum number of watched folders, because a user has at least 8192 watches


class Inotify:
    """A watch on a folder and all folders below it, also folders made later. Raises OSError if the system has no
    inotify."""

    def __init__(self, folder: Path):
        if not sys.platform.startswith("linux"):
            raise OSError("only Linux has inotify")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, str] = {}
        self._moved: dict[int, str] = {}  # by the cookie of the rename: a renamed folder, whose new name comes next
        self._add(str(folder))

    def _add(self, folder: str) -> None:
        for base, names, _ in os.walk(folder):
            names[:] = [name for name in names if not name.startswith((".", "__"))]
            if len(self._folders) < MOST_FOLDERS:
                number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(base), WATCHED)
                if number >= 0:
                    self._folders[number] = base

    def listen_to(self, folder: str, name: str) -> None:
        """Watches the files of another folder. The events' paths begin with `name`. Any thread may call `listen_to`."""
        number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), WATCHED)
        if number >= 0:
            self._folders[number] = name

    def events(self, wait_s: float) -> Iterator[tuple[int, str]]:
        """Yields the mask and the path of each event that comes within wait_s.

        The rename of a folder is reported as a rename of each file in the folder.
        """
        if not select.select([self._descriptor], [], [], wait_s)[0]:
            return
        data, at = os.read(self._descriptor, 1 << 16), 0
        while at < len(data):
            number, mask, cookie, size = EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + EVENT.size : at + EVENT.size + size].rstrip(b"\0"))
            at += EVENT.size + size
            path = f"{self._folders.get(number, '')}/{name}"
            if not mask & IS_FOLDER and name:
                yield mask, path
            elif mask & IS_FOLDER and mask & MOVED_FROM:
                self._moved[cookie] = path
            elif mask & IS_FOLDER and mask & MOVED_TO and (before := self._moved.pop(cookie, "")):
                yield from self._renamed(before, path)
            elif mask & IS_FOLDER and mask & (CREATE | MOVED_TO) and not name.startswith((".", "__")):
                self._add(path)
                yield from ((FOUND, entry.path) for entry in _files(path))

    def _renamed(self, before: str, after: str) -> Iterator[tuple[int, str]]:
        """Yields a rename of each file in a renamed folder, because a checkpoint of several files is often written to a
        temporary folder."""
        for number, folder in [*self._folders.items()]:
            if folder == before or folder.startswith(f"{before}/"):
                self._folders[number] = after + folder.removeprefix(before)
        self._add(after)  # a new folder may not be watched yet
        for base, _, names in os.walk(after):
            for name in names:
                path = f"{base}/{name}"
                yield MOVED_FROM, before + path.removeprefix(after)
                yield MOVED_TO, path

    def close(self) -> None:
        os.close(self._descriptor)


def _files(folder: str) -> list[os.DirEntry[str]]:
    """Returns the files that already existed when the folder was watched."""
    try:
        return [entry for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return []
