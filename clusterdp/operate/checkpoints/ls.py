"""`clusterdp checkpoint ls`: lists checkpoints, newest commit first. Only the first line of each manifest is read."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from clusterdp.checkpoint.format.manifest import CheckpointInfo, Damage
from clusterdp.operate.checkpoints.place import CheckpointPlace, look
from clusterdp.operate.output.formatting import Colour, ago, clock
from clusterdp.wording import counted, size, table


def show_list(place: CheckpointPlace, out: TextIO, as_json: bool = False, now: float | None = None) -> None:
    if as_json:
        json.dump(as_data(place, *look(place)), out, indent=2)
        out.write("\n")
    else:
        commits, damaged = place.commits()
        out.write("\n".join(as_text(place, commits, damaged, time.time() if now is None else now, Colour(out))) + "\n")


def as_text(
    place: CheckpointPlace, commits: Sequence[CheckpointInfo], damaged: Sequence[Damage], now: float, colour: Colour
) -> list[str]:
    wanted = place.of_which(list(commits))
    total = sum({info.data: info.bytes for info in wanted}.values())
    lines = [f"{colour('bold', place.name)}  {counted(len(wanted), 'checkpoint')}, {size(total)}"]
    if damaged:
        lines[0] += ", " + colour("red", f"{counted(len(damaged), 'damaged manifest')}")
    if wanted:
        cells = [HEAD, *(_row(info, info is commits[-1], now) for info in reversed(wanted))]
        if not any(info.phase for info in wanted):
            cells = [row[:-1] for row in cells]
        head, *rows = table(cells)
        lines += ["", colour("dim", head), *rows, "", colour("dim", LEGEND)]
    return lines + [f"{colour('red', 'damaged')}  {why_of(damage)}" for damage in reversed(damaged)]


HEAD = ("  step", "age", "committed", "size", "ranks", "attempt", "token", "phase")
LEGEND = "* a resume takes this one, if `clusterdp checkpoint verify` finds it good"


def why_of(damage: Damage) -> str:
    """Returns the reason of a manifest's damage. The manifest's name is added, because the text of an I/O error lacks
    it."""
    return damage.why if damage.name in damage.why else f"{damage.name}: {damage.why}"


def as_data(place: CheckpointPlace, commits: Sequence[CheckpointInfo], damaged: Sequence[Damage]) -> dict[str, Any]:
    """Returns the values that --json prints; json.schema.json describes them. Checkpoints are ordered from newest to
    oldest commit."""
    wanted = place.of_which(list(commits))
    return {
        "url": place.storage.url,
        "run": str(place.run.path) if place.run else None,
        "checkpoints": [
            {**asdict(info), "attempt": info.attempt or None, "manifest": info.name, "newest": info is commits[-1]}
            for info in reversed(wanted)
        ],
        "damaged": [asdict(damage) for damage in damaged],
    }


def _row(info: CheckpointInfo, newest: bool, now: float) -> tuple[str, ...]:
    return (
        f"{'*' if newest else ' '} {info.step}",
        ago(info.committed_at, now).removesuffix(" ago"),
        clock(info.committed_at, now),
        size(info.bytes),
        str(info.world_size),
        info.attempt or "-",
        info.token,
        info.phase or "-",
    )
