"""Reads plain files safely, and writes files durably. Reading is unsafe if other users can replace a file: opening a
pipe may block for ever, and a device may have no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST = 64 << 20  # largest size in bytes of a file that is read whole


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Opens a regular file, or a link to a regular file unless `flags` forbid links. Raises OSError for anything
    else."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a plain file", os.fspath(path))


def reading(path: str | os.PathLike[str]) -> BinaryIO:
    return os.fdopen(open_plain(path), "rb")


def read_plain(path: Path, most: int = MOST) -> bytes:
    """Returns all bytes of a file. Raises OSError if the file cannot be read, or has more than `most` bytes."""
    with reading(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def read_own(path: Path) -> bytes:
    """Returns all bytes of a file that will be unpickled. Raises PermissionError unless it is this user's, and no other
    user can write to it: to unpickle a file is to run its writer's code."""
    fd = open_plain(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "it is not yours alone, so it is not unpickled", str(path))
        return file.read()


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable: without this, a power cut can lose the name of a new file whose bytes were
    synced."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot fsync a folder: no need
            raise
    finally:
        os.close(fd)


def write_durably(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a temporary file, fsyncs and renames it, and fsyncs the folder. A reader finds the old or the new file
    complete, also after a crash. Text is written as UTF-8.

    mode: the file's mode before the umask is applied; with 0o600, only the owner can read the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
