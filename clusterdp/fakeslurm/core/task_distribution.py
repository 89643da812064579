"""How many tasks each node of a step gets, as in Slurm's slurm_step_layout.c."""

from __future__ import annotations

from collections.abc import Sequence


def deal(tasks: int, room: Sequence[int], cyclic: bool = False) -> list[int]:
    """The number of tasks on each node: one on each, then round again, as long as there is room; `room` counts
    tasks.

    Which ranks they are is decided elsewhere. If there are more tasks than room, all nodes get more alike; in cyclic
    order none gets much more than its room.
    """
    counts = [0] * len(room)
    excess = tasks - sum(room)
    above = -(-excess // len(room)) if cyclic and excess > 0 else 0
    crowded, lap = False, 0
    while tasks:
        space = False
        for i, most in enumerate(room):
            if tasks and ((crowded and not cyclic) or lap < most + above):
                counts[i] += 1
                tasks -= 1
                space = space or lap + 1 < most
        crowded = crowded or not space
        lap += 1
    return counts
