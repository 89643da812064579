"""HangWatch: lets the agent of the node watch this rank for a hang. See NodeWatch.

The rank itself only writes its position to the page, the memory that it shares with the agent. When the agent sends a
signal, faulthandler writes the rank's stacks. faulthandler runs in C, and works even while the main thread holds the
GIL.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
from pathlib import Path

from clusterdp.batch.beside import STACKS, STACKS_SIGNAL
from clusterdp.config.tree import RestartConfig
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.hang import flight_record, page
from clusterdp.train.hang.watched_rank import WatchOrder
from clusterdp.train.output.say import say


def prepare(
    run_dir: Path, attempt: str, restart: RestartConfig, timeout_s: float
) -> tuple[WatchOrder, tuple[int, int, int]] | None:
    """Returns the order for the agent, and the descriptors of the page, the stacks and the output. Call prepare() in
    the main thread, before any call of page.current(). If memory is full, prints a warning, and the rank is not
    watched."""
    slurm = SlurmEnv.read()
    try:
        files = page.shared(), page.memory(STACKS), os.dup(1)
    except OSError as error:
        say(f"clusterdp: hangs will not be noticed: {error.strerror}.", error=True)
        return None
    if STACKS_SIGNAL:
        faulthandler.register(STACKS_SIGNAL, files[1], all_threads=True)
    dump, pipe, folder = flight_record.place(slurm.rank)
    order = WatchOrder(
        run_dir=str(run_dir),
        attempt=attempt,
        rank=slurm.rank,
        world_size=slurm.world_size,
        local_world_size=slurm.local_world_size,
        node=slurm.node_name or socket.gethostname(),
        nodelist=slurm.nodelist or "",
        pid=os.getpid(),
        thread=threading.main_thread().ident or 0,
        hang_after_s=restart.hang_after_s,
        on_hang=restart.on_hang,
        timeout_s=timeout_s,
        dump=dump,
        dump_pipe=pipe,
        dump_folder=folder,
    )
    return order, files
