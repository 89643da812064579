"""How many tasks each node of a step gets, as Slurm's slurm_step_layout.c deals them out."""

from __future__ import annotations

from collections.abc import Sequence


def deal(tasks: int, room: Sequence[int], cyclic: bool = False) -> list[int]:
    """One for each node and round again, as long as it has room; `room` counts tasks.

    Which ranks they are is another matter: blocks, or dealt out as well. More tasks than there is room for go to all
    nodes alike, in cyclic order to none much above its room.
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
