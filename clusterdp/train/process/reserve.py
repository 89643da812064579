"""A process that waits to become a rank, with torch loaded (batch/act/reserve.py).

The variables of the attempt come through stdin. Until then the process runs no operation of torch, touches no GPU, and
ends at each signal, and at the end of stdin. The user's code, seeds and the rendezvous come after. If the user's code
sets variables that torch reads when it is loaded, the next attempt must start without it: see noting_variables().
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterdp import procfs
from clusterdp.batch.files.job import COLD, RESERVE

NAME = b"reserve"  # of the process, as in `ps -o comm`, while it waits
NICE = 19
NEEDS = 1e9  # bytes of memory, more than a process takes: the ranks may grow
# An optimizer imports torch._dynamo, which takes as long as torch itself.
LOADED = (
    "torch._dynamo",
    "clusterdp.checkpoint",
    "clusterdp.train.hang.hang_watch",
    "clusterdp.train.job",
    "clusterdp.train.loop.loop",
    "clusterdp.train.loop.save_schedule",
    "clusterdp.train.parallel.strategy",
    "clusterdp.train.process.attempt",
    "clusterdp.train.ranks.group",
)
READ_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "LD_")
MEET_S = 300.0  # limit of the seconds in which ranks from reserve meet: their nodes have just run the program
SPARE = 0.1  # share of the job's memory on a node that stays free


meet_s = math.inf  # limit of the seconds in which this process meets the other ranks


def wait(begin: Callable[[], object]) -> None:
    """Calls begin() when this process is a rank: at once, or when it becomes one, with the variables of its attempt.
    Exits if it does not become one."""
    global meet_s
    names = (RESERVE, "CLUSTERDP_STANDBY")  # the second of the batch program of a job that was submitted before 0.1
    if not [name for name in names if os.environ.pop(name, None)]:
        begin()
        return
    meet_s = MEET_S  # one that is stopped must not hold the others for train.timeout_s
    name, loading = _rename(NAME), _Loading()
    said = b""
    while not said.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            os._exit(0)
        said += more
    begin()
    loading.is_rank = True
    for key, value in json.loads(said).items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    loading.join()
    _rename(name)


class _Loading(threading.Thread):
    """Loads what each rank needs. A thread, because a process cannot raise its priority again."""

    def __init__(self) -> None:
        super().__init__(name="clusterdp-load", daemon=True)
        self.is_rank = False
        self.start()

    def run(self) -> None:
        limit, free = procfs.memory_of_job()
        if free - NEEDS * int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < SPARE * limit and not self.is_rank:
            os._exit(1)  # srun reports it, and the other tasks are not used
        with suppress(ImportError):
            importlib.import_module("numpy")  # its threads would inherit the priority
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


def _rename(name: bytes) -> bytes:
    """Sets the name of this process. Returns the one before."""
    with open("/proc/self/comm", "r+b", buffering=0) as file:
        before = file.read().strip()
        file.write(name)
    return before


@contextmanager
def noting_variables(folder: Path | None) -> Iterator[None]:
    """Surrounds the import of the user's code. If this sets variables that libraries read when they are loaded, no
    later attempt has torch loaded before (batch/act/reserve.py). folder: of the attempt, if it has one."""
    before = _variables()
    yield
    if folder is not None and _variables() != before:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COLD).touch()


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}
