"""Checkpoints beside their peers and what the machine can do: the stall, the save, the restore, the step meanwhile.

    python -m tests.benchmarks.checkpoint_speed --mb 300 --ranks 1 2 4

Parameters and Adam's two moments in fp32, in tensors of mixed size and one that is a third of the whole. Peers that
save on rank 0 alone do so here, while the others wait, as they do in a training. Times are those of the slowest rank.
Lightning and accelerate are taken along if they are installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.table import Measure, show, take_turns

OURS = "clusterdp"
TABLES = {  # title, and the row that the others are compared with
    "save": ("Durable and committed", "save raw"),
    "stall": ("The training stands still", "stall memcpy"),
    "load": ("Into the live tensors", "load pages"),
    "step": ("A training step of one thread", "step"),
}
RAW = "limit: write and fsync, by as many"
COPY = "limit: memcpy of T/N, by as many"
PAGES = "limit: read from the page cache"
SAVES = (
    "save",
    "save torch",
    "save torch durable",
    "save safetensors",
    "save dcp",
    "save lightning",
    "save accelerate",
)
NAMES = {
    "save": f"{OURS}: save",
    "save raw": RAW,
    "save torch": "torch.save",
    "save torch durable": "torch.save, fsync, rename, fsync",
    "save safetensors": "safetensors, fsync",
    "save dcp": "dcp.save",
    "save lightning": "Lightning Fabric.save",
    "save accelerate": "accelerate save_state",
    "stall": f"{OURS}: async_save",
    "stall memcpy": COPY,
    "stall dcp thread": "dcp.async_save, thread",
    "stall dcp process": "dcp.async_save, process",
    "load": f"{OURS}: restore, every byte verified",
    "load unverified": f"{OURS}: restore without checksums",
    "load pages": PAGES,
    "load torch": "torch.load, load_state_dict",
    "load safetensors": "safetensors, load_state_dict",
    "load dcp": "dcp.load",
    "step": "step, nothing else going on",
    "step while saving": f"step while {OURS} writes",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=int, default=300)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=("save", "stall", "load", "step"), nargs="+")
    options.add_argument("--folder", type=Path, help="on the disk to be measured")
    chosen = options.parse_args()
    for ranks in chosen.ranks:
        with (
            tempfile.TemporaryDirectory(prefix="clusterdp-bench-", dir=chosen.folder) as folder,
            workers(ranks, chosen.mb, folder) as ask,
        ):
            for name in chosen.only or TABLES:
                title, limit = TABLES[name]
                there = {label: timed(ask, m) for m, label in NAMES.items() if m.split()[0] == name and ask("has", m)}
                beside = {label: NAMES[limit] for label in there if label != NAMES[limit]}
                rows = take_turns(there, chosen.rounds, beside)
                show(f"{title}: {chosen.mb} MB, {ranks} rank(s)", rows)
                print(flush=True)


def timed(ask: Callable[..., Any], name: str) -> Measure:
    return lambda: float(ask("time", name))


@contextmanager
def workers(size: int, mb: int, folder: str) -> Iterator[Callable[..., Any]]:
    """`size` ranks that do what they are asked, all at once; the answer is the largest of theirs."""
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "1"
    pipes = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=work, args=(rank, size, mb, folder, pipe[1]), daemon=False)
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, far in pipes:
        far.close()

    def ask(*words: str) -> Any:
        for near, _ in pipes:
            near.send(words)
        return max(near.recv() for near, _ in pipes)

    try:
        yield ask
        for near, _ in pipes:
            near.send(None)
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()


def work(rank: int, size: int, mb: int, folder: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from tests.benchmarks import checkpoint_peers

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    peers = checkpoint_peers.Peers(Path(folder), rank, size, mb)
    while (words := pipe.recv()) is not None:
        what, name = words
        if what == "has":
            pipe.send(peers.has(name))
            continue
        # What is left of the one before, ours too: deleting takes a third as long as writing, and peers do not.
        for path in (*Path(folder).glob("written-*"), *sorted(Path(folder, "ours").glob("step_*"))[:-1]):
            if rank == 0:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if rank == 0:
            os.sync()
        prepared = peers.prepare(name)
        dist.barrier()
        began = time.perf_counter()
        prepared()
        taken = time.perf_counter() - began
        peers.finish(name)
        dist.barrier()
        pipe.send(taken)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
