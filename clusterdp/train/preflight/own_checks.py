"""The checks of a node by itself: its devices' results, its memory, and its access to the run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterdp.slurm.env import SlurmEnv

MB = 1 << 20
LEAST_HOST_MB = 256  # MB of free host memory; a process with torch needs more than this
LEAST_DEVICE_SHARE = 0.5  # share of free GPU memory; a job begins with empty GPUs: with less, an old process still runs
LEAST_DISK_MB = 64  # MB for an attempt's logs and metrics; only the training knows whether a checkpoint fits
SLOW_WRITE_S = 1.0  # seconds to write 4 KiB with fsync; a busy NFS takes 0.1 s
DEAD_WRITE_S = 30.0  # seconds for the same write, as during the failover of a file system: each save would stall
SIZE = 256  # matrix size: a product takes a millisecond, and sums of small integers are exact in float32 and TF32


def free_host_memory(meminfo: Path = Path("/proc/meminfo")) -> Iterator[NodeFinding]:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) // 1024
    except (OSError, KeyError, ValueError):
        return  # not Linux
    if free < LEAST_HOST_MB:
        yield NodeFinding(f"{free} MB of memory are free, fewer than {LEAST_HOST_MB}")


def run_folder(folder: Path, node: str) -> Iterator[NodeFinding]:
    """Checks the run folder's free space, and writes a small file to the disk and removes it again."""
    probe = folder / f"preflight-{node}-{os.getpid()}"
    began = time.monotonic()
    try:
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize // MB
        try:
            with probe.open("wb") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        yield NodeFinding(f"cannot write to the run folder: {error.strerror}")
        return
    if free < LEAST_DISK_MB:
        yield NodeFinding(f"the run folder has {free} MB of free space, fewer than {LEAST_DISK_MB}")
    took = time.monotonic() - began
    if took > SLOW_WRITE_S:
        yield NodeFinding(f"4 KiB took {took:.1f} s to reach the run folder", fatal=took > DEAD_WRITE_S)


def devices() -> Iterator[NodeFinding]:
    """Checks each GPU that this node's task sees; without any GPU, the CPU."""
    import torch

    count = torch.cuda.device_count()
    for name in [f"cuda:{index}" for index in range(count)] or ["cpu"]:
        try:
            yield from _device(torch.device(name), f"GPU {name[5:]}" if count else "the CPU")
        except RuntimeError as error:
            yield NodeFinding(f"GPU {name[5:]} does not compute: {str(error).splitlines()[0]}")
    wanted = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):  # CUDA shows only one MIG slice to a process
        wanted = "1"
    if wanted.isdigit() and count < int(wanted):  # a rehearsal on the fake cluster may have no GPU
        yield NodeFinding(f"torch sees {count} of {wanted} GPUs", fatal=count > 0 or SlurmEnv.read().gives_gpus)


def _device(device: object, name: str) -> Iterator[NodeFinding]:
    import torch

    assert isinstance(device, torch.device)
    numbers = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 7
    product = numbers.float().to(device) @ numbers.float().to(device)
    if not torch.equal(product.cpu().double(), numbers.double() @ numbers.double()):
        yield NodeFinding(f"{name} gives a wrong product")
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        if free < LEAST_DEVICE_SHARE * total:
            yield NodeFinding(
                f"{name} has {free // MB} of {total // MB} MB free: is a process left behind?", fatal=False
            )


@dataclass(frozen=True)
class NodeFinding:
    """fatal: whether the ranks must not start on this node. node: the name of another node that has the fault; `-`
    means no particular node."""

    text: str
    fatal: bool = True
    node: str = ""

    def line(self, here: str) -> str:
        text = " ".join(self.text.split())
        return f"preflight {self.node or here} {'failed' if self.fatal else 'says'} {text}"


def tell(line: str) -> None:
    """Prints a line in one write, because print() writes the newline separately: srun could insert another node's line
    before the newline."""
    os.write(1, f"{line}\n".encode())
