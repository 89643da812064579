"""Yields findings about the folders of the run and of the checkpoints: they must be writable, shared by all nodes, and
have enough room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.storage.local import mount_of
from clusterdp.wording import counted, size

LOCAL = frozenset(
    "btrfs ext2 ext3 ext4 overlay ramfs tmpfs xfs zfs".split()
)  # file systems that other machines see only through an export
FILES_OF_A_RANK = 2  # files of one rank in a checkpoint, which also has a manifest and a folder


def room_findings(subject: Subject) -> Iterator[Finding]:
    """Yields findings about the file systems. Slurm is not asked, and no file is written."""
    run = existing(subject.spec.run_dir)
    yield from _of_writing(run, "run_dir")
    folder = checkpoint_folder(subject)
    key = "checkpoint.url" if subject.config.checkpoint.url else "run_dir"
    if folder is None:
        if subject.config.checkpoint.keep_local:  # checkpoints also have local copies
            yield from _of_room(subject, run, "checkpoint.keep_local")
        return
    place = existing(folder)
    if place != run:
        yield from _of_writing(place, key)
    yield from _of_room(subject, place, key)


def existing(path: Path) -> Path:
    """Returns the folder itself, or its nearest existing parent folder."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def checkpoint_folder(subject: Subject) -> Path | None:
    """Returns the folder of the checkpoints; None if the checkpoints go to a store."""
    url = subject.spec.checkpoint_url
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    return None if "://" in url else (subject.spec.submit_dir / Path(url).expanduser())


def _of_writing(folder: Path, key: str) -> Iterator[Finding]:
    if not folder.is_dir():
        yield Finding("error", key, f"{folder} is not a folder", "the run folder cannot be made", "Name another.")
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = "nothing can be written there" if not _is_read_only(folder) else "it is mounted read-only"
        yield Finding("error", key, f"{folder} cannot be written", why, "Name another, or change its permissions.")


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _of_room(subject: Subject, folder: Path, key: str) -> Iterator[Finding]:
    """Yields a finding if the disk is too small for the checkpoints. The disk needs room for one checkpoint more than
    are kept, because the oldest checkpoint is deleted only when the newest is complete."""
    if subject.spec.kind != "entry":
        return
    status, checkpoint = os.statvfs(folder), subject.config.checkpoint
    keeps = "checkpoint.keep_local" if checkpoint.keep_local else "checkpoint.keep_last"
    kept = (checkpoint.keep_local or checkpoint.keep_last) + 1
    free = status.f_bavail * status.f_frsize
    if subject.last is not None:
        need = subject.last.bytes * kept * subject.elements
        if need > free:
            many = f" x {counted(subject.elements, 'element')}" if subject.elements > 1 else ""
            what = f"{folder} has {size(free)} free"
            each = f"{size(subject.last.bytes)} (as in {subject.last.path.name})"
            why = f"{kept} checkpoints of {each}{many} need {size(need)}"
            yield Finding("error", key, what, why, f"Make room, keep fewer ({keeps}), or name another place.")
    files = (FILES_OF_A_RANK * subject.ranks + 2) * kept * subject.elements
    if status.f_files and 0 < status.f_favail < files:
        what = f"{folder} has {status.f_favail} files (inodes) left"
        why = f"{kept} checkpoints of {subject.ranks} ranks take {files}"
        yield Finding("error", key, what, why, "Remove files, keep fewer checkpoints, or name another place.")


def sharing_findings(subject: Subject, hosts: set[str]) -> Iterator[Finding]:
    """Yields a finding if the run folder is on a local disk. `hosts` has the names and addresses of the nodes. If this
    machine is one of these nodes, its local disks are accepted."""
    here = os.uname().nodename
    if not hosts or {here, here.split(".")[0], "localhost", "127.0.0.1"} & hosts:
        return
    folder = existing(subject.spec.run_dir)
    mounted = mount_of(folder)
    if mounted and mounted[1] in LOCAL:
        what = f"{folder} is on {mounted[1]} of this machine ({mounted[0]})"
        why = "unless this machine exports it, the nodes do not see it: the job fails without a log"
        yield Finding("warning", "run_dir", what, why, "Name a folder on a shared file system.")
