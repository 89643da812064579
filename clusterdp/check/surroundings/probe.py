"""Tests on this machine: variables of the shell that are passed to the job and change the ranks' behaviour, and the
interpreter of the batch program. With --probe, a file is put into the store, another file is written and synced beside
the run folder, and both files are deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.check.surroundings.storage_room import checkpoint_folder, existing
from clusterdp.errors import ClusterdpError
from clusterdp.storage import RetryPolicy, masked, open_storage

DATA = b"clusterdp check --probe: may be deleted\n"
SLOW_S = 1.0
# Variables that the job's script or submit itself sets or unsets are harmless: RANK, WORLD_SIZE, MASTER_ADDR,
# SLURM_*, SBATCH_*, TORCHELASTIC_*, and CUDA_VISIBLE_DEVICES if Slurm gives GPUs.
GPUS = "no GPUs are asked of Slurm, so that it does not set it: the ranks see these alone"
IS_RECENT = "import sys; sys.exit(sys.version_info < (3, 6))"
START_S = 20
SLOW = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def probe_findings(subject: Subject) -> Iterator[Finding]:
    """Yields findings from trial writes. If a folder does not exist yet, the nearest existing parent folder is
    tested."""
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


def environment_findings(subject: Subject, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    given = {name: value for name, value in environ.items() if value and name not in subject.config.launch.env}
    if "CUDA_VISIBLE_DEVICES" in given and not subject.gpus_per_node:
        yield _leaks("CUDA_VISIBLE_DEVICES", given, GPUS)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if name in given:
            yield _leaks(name, given, "where a node has no such interface, the ranks do not meet")
    for name in SLOW:
        if given.get(name, "0") not in ("0", "OFF", "INFO"):
            yield _leaks(name, given, "it is there to find faults, and makes a job slow")
    if environ.get("SLURM_JOB_ID") and subject.config.backend == "submitit":
        what = f"this shell is inside job {environ['SLURM_JOB_ID']}"
        yield Finding("hint", "SLURM_JOB_ID", what, "submitit takes parts of it over", "Submit from a login node.")


def launch_findings(subject: Subject) -> Iterator[Finding]:
    """Yields findings about files that each task needs before it becomes the program."""
    launch, here = subject.config.launch, subject.spec.submit_dir
    path = launch.env.get("PATH")
    if path is not None and not shutil.which("bash", path=path):
        what = f"no folder of {path!r} has bash here"
        why = "bash starts the ranks; it is the whole PATH of the tasks, and nothing expands $PATH in it"
        yield Finding("warning", "launch.env.PATH", what, why, "Write its folders too, or add yours in launch.setup.")
    image = launch.container.image or ""
    is_file = image.startswith(("/", "./", "../")) or image.endswith((".sif", ".sqsh", ".img"))
    if is_file and "://" not in image and not (here / image).exists():
        what, why = f"{image} is not on this machine", "where the nodes do not have it either, no rank starts"
        yield Finding("warning", "launch.container.image", what, why, "Name an image that the nodes see.")


def _leaks(name: str, given: Mapping[str, str], why: str) -> Finding:
    what = f"{given[name][:40]} is set in this shell, and goes with the job"
    return Finding("hint", name, what, why, f"unset {name}, or write it in launch.env.")


def host_python_findings(subject: Subject) -> Iterator[Finding]:
    """Yields a finding if launch.host_python fails the same test that the job's script makes."""
    python = subject.config.launch.host_python
    if python is None:
        return
    try:
        words = [python, "-I", "-S", "-c", IS_RECENT]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S)
        problem = "is not Python 3.6 or later here" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"cannot be run here ({getattr(error, 'strerror', None) or 'it does not end'})"
    if problem:
        why = (
            "where the first node is like this machine, the batch program runs with the system's Python, or not at all"
        )
        yield Finding("warning", "launch.host_python", f"{python} {problem}", why, "Name one that the nodes have.")
