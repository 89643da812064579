"""small_disk: a real file system of a few megabytes, which can be full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, mb: int) -> Iterator[Path]:
    """Made by a mount: what the kernel does when it is full or read-only is not what a test makes up. Skips if it
    cannot be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mb}m", "tmpfs", str(folder)]
    if (
        os.geteuid()
        or not sys.platform.startswith("linux")
        or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode
    ):
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    """To the last byte that the disk of this file has."""
    with file.open("ab", buffering=0) as filler:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    filler.write(bytes(size))
