"""A disk of a few megabytes that nobody else has: a tmpfs in a mount namespace of its own, on Linux.

Root may mount one; anybody else where the kernel lets users make namespaces (user_namespaces(7)).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


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
