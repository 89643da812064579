"""Orders of slurmctld to slurmstepd: one type per order, and their form in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args


@dataclass(frozen=True)
class Terminate:
    """Send these signals to all processes of the step, print `why`, and kill the processes left after kill_after."""

    signals: tuple[int, ...]
    kill_after: float | None  # in seconds; None: no later KILL, because the signals already kill
    why: str | None = ""  # the reason that slurmstepd prints; None: it prints nothing
    abort: bool = False  # whether srun prints that the step is aborted
    killer: int | None = None  # uid of the user who cancelled the step
    timed_out: bool = False
    srun_code: int = 0  # exit code of srun; 0: the exit code of the tasks
    details: str = ""  # lines that slurmstepd prints before `why`


@dataclass(frozen=True)
class Warn:
    """Print that the step is cancelled and send these signals. slurmstepd kills nothing."""

    signals: tuple[int, ...]


@dataclass(frozen=True)
class Signal:
    """Send a signal to all processes of the step."""

    number: int


@dataclass(frozen=True)
class SignalScript:
    """Send a signal to the shell of the batch script, not to its children."""

    number: int


@dataclass(frozen=True)
class FailNode:
    """Kill the tasks on a node. slurmstepd reports their end only when slurmctld has noticed that the node failed."""

    node: str


@dataclass(frozen=True)
class KillRank:
    """Kill the task with this rank."""

    rank: int


@dataclass(frozen=True)
class OutliveSrun:
    """Continue when srun ends, because the batch host has failed, and the srun there dies."""


@dataclass(frozen=True)
class Say:
    """Print a line on srun's stderr."""

    text: str


@dataclass(frozen=True)
class Received:
    """Not an order, but the answer to a report. slurmstepd may end after this answer."""

    linger_s: float = 0  # seconds in which background processes of a batch script must end


Order = Terminate | Warn | Signal | SignalScript | FailNode | KillRank | OutliveSrun | Say | Received
TYPES = {kind.__name__: kind for kind in get_args(Order)}


def encode(order: Order, ack: str = "") -> bytes:
    """Encodes an order. `ack`: the name with which slurmstepd acknowledges the order ("": no acknowledgement)."""
    return json.dumps({"order": type(order).__name__, "ack": ack, **vars(order)}).encode()


def decode(payload: bytes) -> tuple[Order, str]:
    """Returns the order and the name of its acknowledgement. Raises ValueError for an unknown order."""
    values = json.loads(payload)
    name, ack = values.pop("order"), values.pop("ack")
    if name not in TYPES:
        raise ValueError(f"order {name!r}: unknown to this version of the fake cluster")
    order: Order = TYPES[name](**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
    return order, ack
