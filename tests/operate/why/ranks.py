"""`python ranks.py NAME`: one rank of a job that fails as NAME says. Plain torch, gloo; nothing of clusterdp."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
NODE = os.environ.get("SLURMD_NODENAME", "")


def main(name: str) -> None:
    if name == "port-in-use":
        port_in_use()
    if name == "import-error" and RANK == 1:
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3 if name == "collective-timeout" else 60))
    reduce(3)
    FAILURES[name]()
    reduce(200)


def reduce(times: int) -> None:
    for step in range(times):
        dist.all_reduce(torch.ones(4))
        print(f"rank {RANK} step {step} loss {1 / (step + 1):.4f}", flush=True)


def raise_in(rank: int, delay_s: float = 0.0) -> None:
    if rank == RANK:
        time.sleep(delay_s)
        raise ValueError("the label 17 of image 4711 is not among 10 classes")


def flood() -> None:
    """Rank 2 fails, and then all print 200 kB of what follows from that, rank 2 as well."""
    try:
        raise_in(2)
        reduce(200)
    except (ValueError, RuntimeError) as error:
        traceback.print_exc()
        said = str(error) if RANK != 2 else "worker: Connection closed by peer"
        if RANK == 2:
            dist.destroy_process_group()  # the others notice while it still prints
        for _ in range(200_000 // (len(said) + 40)):
            print(f"[rank{RANK}]: retry: RuntimeError: {said}", file=sys.stderr)
        time.sleep(2)
        os._exit(1)


def killed() -> None:
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    if RANK == 3:
        ctypes.string_at(0)


def exit_without_cleanup() -> None:
    if RANK == 2:
        os._exit(7)


def exit_without_a_word() -> None:
    if RANK == 1:
        os._exit(3)  # sys.exit() has aborted now and then, in gloo's threads


def memory_error() -> None:
    if RANK == 0:
        bytearray(1 << 62)


def port_in_use() -> None:
    """Something else has the port that rank 0 wants: here, rank 0 itself."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(os.environ["MASTER_PORT"])
    if RANK == 0:
        taken.bind(("", port))
        taken.listen()
    else:
        time.sleep(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))


def missing_file() -> None:
    """On the second node alone."""
    if NODE.endswith("2"):
        time.sleep(0.5 * (RANK % 2))
        open("data/train-0007.bin")  # noqa: SIM115


def collective_timeout() -> None:
    if RANK == 2:
        time.sleep(30)


FAILURES = {
    "exception-in-rank-0": lambda: raise_in(0),
    "exception-in-rank-1-later": lambda: raise_in(1, 1.5),
    "exception-in-the-last-rank": lambda: raise_in(WORLD - 1),
    "torchrun-exception": lambda: raise_in(3),
    "torchrun-killed": killed,
    "flood": flood,
    "killed": killed,
    "segfault": segfault,
    "exit-without-cleanup": exit_without_cleanup,
    "exit-without-a-word": exit_without_a_word,
    "memory-error": memory_error,
    "missing-file-on-one-node": missing_file,
    "collective-timeout": collective_timeout,
}

if __name__ == "__main__":
    main(sys.argv[1])
