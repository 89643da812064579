"""Plain files, read though others may have replaced them (opening a pipe may block for ever, and a device may have no
end), and written so that they last."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST = 64 << 20  # bytes of a file that is read whole


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """os.open() of a regular file, or of a link to one unless `flags` forbid it. OSError where it is anything else."""
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
    """All of a file. OSError, also where it has more than `most` bytes."""
    with reading(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def sync_folder(path: Path) -> None:
    """Makes the names in it durable: that of a new file is lost in a power cut, though its bytes were synced."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot fsync a folder: theirs is durable as it is
            raise
    finally:
        os.close(fd)


def write_durably(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Temporary file, fsync, rename, fsync of the folder. A reader finds the file complete, old or new, also after a
    crash. Text is written as UTF-8.

    mode: less what the umask takes away; 0o600 is for the owner alone.
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
