"""write_durably: a file that is complete after a crash, old or new."""

from __future__ import annotations

import os
from pathlib import Path

from clusterdp.plainfile import sync_folder


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
