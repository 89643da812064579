"""What is kept of a job as files: its script, and the environment that it was submitted from."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from clusterdp.fakeslurm.core.model import JobRecord

ROOM = 256 << 10  # bytes that must be free on the disk for a job to be accepted or started
FILES = ("slurm_script", "environment")


class Spool:
    def __init__(self, folder: Path):
        self._folder = folder

    def of(self, job: JobRecord) -> Path:
        return self._folder / "spool" / f"job{job.id:05}"

    @property
    def room(self) -> bool:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize >= ROOM

    def write(self, job: JobRecord, script: bytes, environ: dict[str, str]) -> None:
        """Raises OSError, and leaves nothing behind then."""
        folder = self.of(job)
        try:
            if not self.room:  # or the journal might have none for a line about it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            folder.mkdir(parents=True, exist_ok=True)
            names = "\0".join(f"{name}={value}" for name, value in environ.items())
            for name, content in zip(FILES, (script, names.encode("utf-8", "surrogateescape")), strict=True):
                (folder / name).write_bytes(content)
            os.chmod(folder / "slurm_script", 0o700)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def share(self, job: JobRecord, element: JobRecord) -> None:
        """What the array has, its element has too."""
        mine, its = os.fspath(self.of(job)), os.fspath(self.of(element))
        os.makedirs(its, exist_ok=True)
        for name in FILES:
            os.link(f"{mine}/{name}", f"{its}/{name}")
