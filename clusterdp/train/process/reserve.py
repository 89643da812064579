"""A process that waits to become a rank, with torch loaded (batch/act/reserve.py).

The variables of the attempt come through stdin. Until then the process runs no operation of torch, touches no GPU, and
ends at each signal, and at the end of stdin. The user's code, seeds and the rendezvous come after. If the user's code
sets variables that torch reads when it is loaded, the next attempt must start without it (fork_server.py). Where a node
has several ranks, only its fork server waits in this way, and the tasks have no torch (batch/nodes/task.py).
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from clusterdp import procfs
from clusterdp.batch.files.job import RESERVE
from clusterdp.batch.nodes.task import rename, take

NICE = 19
NEEDS = 1e9  # bytes of memory, more than a process takes: the ranks may grow
# An optimizer imports torch._dynamo, which takes as long as torch itself.
LOADED = (
    "torch._dynamo",
    "clusterdp.checkpoint",
    "clusterdp.config.files",
    "clusterdp.train.data.datasets",
    "clusterdp.train.hang.hang_watch",
    "clusterdp.train.job",
    "clusterdp.train.loop.loop",
    "clusterdp.train.loop.save_schedule",
    "clusterdp.train.optim.amp",
    "clusterdp.train.parallel.strategy",
    "clusterdp.train.profile.profiling",
    "clusterdp.train.profile.worker_finder",
    "clusterdp.train.process.attempt",
    "clusterdp.train.ranks.group",
)
MEET_S = 300.0  # limit of the seconds in which ranks from reserve meet: their nodes have just run the program
END_S = 1.0  # limit of the seconds in which a thread ends after its last line
SPARE = 0.1  # share of the job's memory on a node that stays free

RESERVES = (RESERVE, "CLUSTERDP_STANDBY")  # the second of the batch program of a job that was submitted before 0.1

meet_s = math.inf  # limit of the seconds in which this process meets the other ranks


def wait(begin: Callable[[], object]) -> None:
    """Calls begin() when this process is a rank: at once, or when it becomes one, with the variables of its attempt.
    Exits if it does not become one."""
    global meet_s
    if not [name for name in RESERVES if os.environ.pop(name, None)]:
        begin()
        return
    meet_s = MEET_S  # one that is stopped must not hold the others for train.timeout_s
    name, loading = rename("reserve"), _Loading()
    said = b""
    while not said.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            os._exit(0)
        said += more
    begin()
    take(said)
    loading.join()
    rename(name)


def load(*, quietly: bool) -> int:
    """Loads what each rank needs. quietly: at a low priority, for ranks in reserve. Returns the number of threads that
    this process may have at a fork: its own, and those of OpenBLAS; 0 if it had others before."""
    global meet_s
    if not quietly:
        return _load()
    meet_s = MEET_S
    loading = _Loading()
    loading.join()
    until = time.monotonic() + END_S
    while len(procfs.threads(os.getpid())) > loading.threads and time.monotonic() < until:
        os.sched_yield()  # join() returns a moment before the thread's end
    return loading.threads


def _load() -> int:
    before = len(procfs.threads(os.getpid()))
    with suppress(ImportError):
        importlib.import_module("numpy")  # its threads would inherit the priority
    blas = len(procfs.threads(os.getpid())) - before
    if threading.current_thread() is not threading.main_thread():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    gc.disable()  # it would search the new objects again and again
    try:
        for each in LOADED:
            importlib.import_module(each)
    except Exception:  # the rank will raise it
        pass
    finally:
        gc.freeze()
        gc.enable()
    return 1 + blas if before == threading.active_count() else 0


class _Loading(threading.Thread):
    """Loads what each rank needs. A thread, because a process cannot raise its priority again."""

    def __init__(self) -> None:
        super().__init__(name="clusterdp-load", daemon=True)
        self.threads = 0
        limit, free = procfs.memory_of_job()
        if free - NEEDS * int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < SPARE * limit:
            os._exit(1)  # srun reports it, and the other tasks are not used
        self.start()

    def run(self) -> None:
        self.threads = _load()
