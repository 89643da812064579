"""`check --probe`: a file is put into the store, and one is written and synced beside the run folder. Both are
deleted."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from clusterdp.check.finding import Finding
from clusterdp.check.storage_room import checkpoint_folder, existing
from clusterdp.check.subject import Subject
from clusterdp.errors import ClusterdpError
from clusterdp.storage import RetryPolicy, masked, open_storage

DATA = b"clusterdp check --probe: may be deleted\n"
SLOW_S = 1.0


def probe_findings(subject: Subject) -> Iterator[Finding]:
    """A folder that is not there yet is made by the job: the one above it is asked."""
    run, folder = existing(subject.spec.run_dir), checkpoint_folder(subject)
    yield from _of_folder(run, "run_dir", "neither can the run folder")
    if folder is None:
        yield from _of_store(subject)
    elif existing(folder) != run:
        yield from _of_folder(existing(folder), "checkpoint.url", "neither can the checkpoints")


def _of_folder(folder: Path, key: str, why: str) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clusterdp-probe-") as file:
            file.write(DATA)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        what = f"a file in {folder} cannot be written: {error.strerror}"
        yield Finding("error", key, what, why, "Name another.")
        return
    yield from _slow(key, f"an fsync in {folder}", time.monotonic() - began)


def _of_store(subject: Subject) -> Iterator[Finding]:
    checkpoint, key = subject.config.checkpoint, "checkpoint.url"
    url, name = masked(checkpoint.url or ""), f".clusterdp-probe-{os.urandom(8).hex()}"
    policy = RetryPolicy(timeout_s=min(checkpoint.timeout_s, 10.0), retry_s=min(checkpoint.retry_s, 10.0))
    began = time.monotonic()
    try:
        storage = open_storage(checkpoint.url or "", retry_policy=policy, **checkpoint.storage_options)
        try:
            storage.publish(name, DATA)
            same = storage.read(name) == DATA
        finally:
            with suppress(OSError):
                storage.remove(name)
    except (OSError, ClusterdpError) as error:
        what = f"{url}: a file cannot be put there: {error}"
        yield Finding("error", key, what, "no checkpoint would be saved", "Correct it, or the rights of this account.")
        return
    if not same:
        yield Finding("error", key, f"{url} gives back other bytes than it was given", "saves fail", "Use another.")
    yield from _slow(key, f"putting {len(DATA)} bytes to {url}", time.monotonic() - began)


def _slow(key: str, what: str, took_s: float) -> Iterator[Finding]:
    if took_s > SLOW_S:
        why = "a save waits for several of these, one after the other"
        yield Finding("hint", key, f"{what} took {took_s:.1f} s", why, "Save less often, or name another place.")
