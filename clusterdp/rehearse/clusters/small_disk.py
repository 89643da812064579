"""A disk of a few megabytes that nobody else has: a tmpfs in a mount namespace of its own, on Linux.

Root may mount one; anybody else where the kernel lets users make namespaces (user_namespaces(7)).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath

from clusterdp.rehearse.observe.file_use import FileUse, is_best


def own_namespace() -> list[str] | None:
    """The words before a command that may mount one; None if that is not possible here."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return None
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    # The tasks of the fake cluster have namespaces below this one, in which a later mount has to be seen, too.
    words = [*unshare, "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh"]
    probe = [*words, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
    done = subprocess.run(probe, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return words if done.returncode == 0 else None


def checkpoint_folder(code: Path, files: Mapping[str, FileUse]) -> Path | None:
    """Where a disk for a program's checkpoints can be mounted: the folder that all of them are in, or the one above if
    its name has a number and so belongs to one of them. None if that is the working folder itself, if it comes with
    files, or if some are elsewhere. files: that an undisturbed run has used, by their paths below its working folder or
    whole paths."""
    made = [path for path, use in files.items() if (use.written or use.named) and not is_best(path)]
    if not made or any(map(os.path.isabs, made)):
        return None
    parts = PurePath(os.path.commonpath([PurePath(path).parent for path in made])).parts
    numbered = next((i for i, part in enumerate(parts) if re.search(r"\d", part)), len(parts))
    folder = code.joinpath(*parts[:numbered])
    return None if folder == code or (folder.exists() and any(folder.iterdir())) else folder


def mount(folder: Path, nbytes: int) -> None:
    """OSError if it cannot be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={nbytes},mode=700", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{folder}: {done.stderr.strip()}")


def keep(folder: Path) -> None:
    """What is on the disk is in the folder afterwards, where everybody sees it."""
    beside = folder.with_name(f"{folder.name}.kept")
    shutil.copytree(folder, beside)
    subprocess.run(["umount", "-l", str(folder)], check=True)
    shutil.rmtree(folder)
    beside.rename(folder)
