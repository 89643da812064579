"""The files of a job: its script, and the environment in which the job was submitted."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from ..core.model import JobRecord

ROOM = 256 << 10  # bytes that must be free on the disk before a job is accepted or started
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
        """Writes the files of a job. If the disk is full, raises OSError and leaves no file."""
        folder = self.of(job)
        try:
            if not self.room:  # the journal needs room for the job, too
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
        """Links the script and environment of an array into the folder of one of its elements."""
        mine, its = os.fspath(self.of(job)), os.fspath(self.of(element))
        os.makedirs(its, exist_ok=True)
        for name in FILES:
            os.link(f"{mine}/{name}", f"{its}/{name}")
