"""Orders of slurmctld to the daemon of a step: a type for each, and their form in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args


@dataclass(frozen=True)
class Terminate:
    """Send these signals to all processes of the step, say why, and kill what is left later."""

    signals: tuple[int, ...]
    kill_after: float | None  # seconds; None: the signals kill already
    why: str | None = ""  # None: nothing is said
    abort: bool = False  # srun says that the step is aborted
    killer: int | None = None  # the uid of the user that cancelled the step
    timed_out: bool = False
    srun_code: int = 0  # the exit code of srun, if it is not that of the tasks
    details: str = ""  # slurmstepd prints them before it says why


@dataclass(frozen=True)
class Warn:
    """Say that the step is cancelled and send these signals; nothing is killed."""

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
    """Kill the tasks on a node; that they ended is reported only when the node's failure is known."""

    node: str


@dataclass(frozen=True)
class KillRank:
    """Kill one task."""

    rank: int


@dataclass(frozen=True)
class OutliveSrun:
    """Run on when srun ends: it dies with the batch host."""


@dataclass(frozen=True)
class Say:
    """Print a line on srun's stderr."""

    text: str


@dataclass(frozen=True)
class Received:
    """No order: the answer to a report, after which the daemon of the step may end."""

    linger_s: float = 0  # what a batch script left in the background may take so long to end


Order = Terminate | Warn | Signal | SignalScript | FailNode | KillRank | OutliveSrun | Say | Received
TYPES = {kind.__name__: kind for kind in get_args(Order)}


def encode(order: Order, ack: str = "") -> bytes:
    """With the name by which the step acknowledges it; "" asks for no acknowledgement."""
    return json.dumps({"order": type(order).__name__, "ack": ack, **vars(order)}).encode()


def decode(payload: bytes) -> tuple[Order, str]:
    """The order and the name of its acknowledgement; raises ValueError for an unknown order."""
    values = json.loads(payload)
    name, ack = values.pop("order"), values.pop("ack")
    if name not in TYPES:
        raise ValueError(f"order {name!r}: unknown to this version of the fake cluster")
    order: Order = TYPES[name](**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
    return order, ack
