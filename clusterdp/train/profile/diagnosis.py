"""What a breakdown of the steps' time means, in plain words and with something to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ORDER = ("data", "copy", "forward", "backward", "optimizer", "metrics", "step", "agreement", "checkpoint")
NOTHING = "Nothing stands out: the time goes into the training itself."
NOTABLE = 0.15  # of a rank's time
WAITS = {"backward", "agreement", "checkpoint"}  # laps in which a rank also waits for the others

RankTimes = Mapping[str, Any]  # {"ms": {"data": 1.5, ...}, "workers": 2, "cpus": 8}


def table(ranks: Sequence[RankTimes]) -> list[str]:
    """A line a rank: ms a step in all, and the share of each part."""
    found = {name for rank in ranks for name in rank["ms"]}
    names = [*(name for name in ORDER if name in found), *sorted(found - set(ORDER))]
    lines = ["rank   ms a step" + "".join(f"{name:>12}" for name in names)]
    for number, rank in enumerate(ranks):
        whole = sum(rank["ms"].values())
        shares = "".join(f"{100 * rank['ms'].get(name, 0.0) / whole:>10.1f} %" for name in names)
        lines.append(f"{number:4} {whole:>11.2f}{shares}")
    return lines


def diagnose(ranks: Sequence[RankTimes]) -> list[str]:
    """Findings, the worst first. Never empty: it is also said that nothing stands out."""
    found = [*_data(ranks), *_copy(ranks), *_saves(ranks), *_uneven(ranks)]
    if not found:
        return [NOTHING]
    return [line for _, line in sorted(found, key=lambda each: -each[0])]


def _data(ranks: Sequence[RankTimes]) -> list[tuple[float, str]]:
    number, share = _worst(ranks, "data")
    if share < NOTABLE:
        return []
    workers, cpus = ranks[number].get("workers"), ranks[number].get("cpus")
    said = f"rank {number} waits {100 * share:.0f} % of the time for data"
    if workers is None:
        return [(share, f"{said}: its loader is no DataLoader; make that one faster.")]
    said += f": {workers} workers on {cpus} cpus"
    if cpus and workers < cpus - 1:
        return [(share, f"{said}; try num_workers: {cpus - 1}.")]
    more = f"ask for more (resources.cpus_per_task: {2 * max(2, cpus or 1)})"
    return [(share, f"{said}; {more}, or make a sample cheaper to read.")]


def _copy(ranks: Sequence[RankTimes]) -> list[tuple[float, str]]:
    """This runs in the training process: workers help only if the work is moved to them."""
    number, share = _worst(ranks, "copy")
    if share < NOTABLE:
        return []
    said = f"rank {number} spends {100 * share:.0f} % of the time moving batches and transforming them"
    remedy = (
        "transform less, or in the data set, whose workers do it beside the training; copy from pinned memory "
        "(pin_memory=True)"
    )
    return [(share, f"{said} (move=, transform=): {remedy}.")]


def _saves(ranks: Sequence[RankTimes]) -> list[tuple[float, str]]:
    number, share = _worst(ranks, "checkpoint")
    if share < NOTABLE / 3:
        return []
    remedy = "save more rarely (checkpoint.every_s), and beside the training (checkpoint.async_save: true)"
    return [(share, f"rank {number} spends {100 * share:.0f} % of the time in saves; {remedy}.")]


def stragglers(ranks: Sequence[RankTimes]) -> list[dict[str, Any]]:
    """Ranks whose own work takes longer than the median's by a notable share of a step, the slowest first.

    Own work is what a rank does without waiting for others. Where a loop has no lap "forward" of its own, its step is
    one lap, with the wait in it: then only data and copy are compared. On a GPU it is the host's work.
    """
    own = [_own_ms(rank["ms"]) for rank in ranks]
    median = sorted(range(len(ranks)), key=own.__getitem__)[(len(ranks) - 1) // 2]
    whole = sum(ranks[median]["ms"].values())
    found = []
    for number in sorted(range(len(ranks)), key=lambda number: -own[number]):
        more = own[number] - own[median]
        if not whole or more / whole < NOTABLE:
            break
        parts = {name: ms - ranks[median]["ms"].get(name, 0.0) for name, ms in _own(ranks[number]["ms"]).items()}
        slow = {"rank": number, "node": ranks[number].get("node"), "more_ms": more, "share": more / whole}
        found.append({**slow, "most_in": max(parts, key=parts.__getitem__)})
    return found


def _own(times: Mapping[str, float]) -> Mapping[str, float]:
    waits = WAITS if "forward" in times else {*WAITS, "step"}
    return {name: ms for name, ms in times.items() if name not in waits}


def _own_ms(times: Mapping[str, float]) -> float:
    return sum(_own(times).values())


def _uneven(ranks: Sequence[RankTimes]) -> list[tuple[float, str]]:
    """Finds a slow rank. In a backward pass, fast ranks wait for slow ones, so the slowest spends the least time in
    it."""
    for slow in stragglers(ranks)[:1]:
        who = f"rank {slow['rank']}" + (f" on {slow['node']}" if slow["node"] else "")
        longer = f"{slow['more_ms']:.1f} ms a step longer than the median, most of it in {slow['most_in']}"
        return [
            (slow["share"], f"the others wait for {who}: {longer}. Look at its node, and at its share of the data.")
        ]
    return []


def _worst(ranks: Sequence[RankTimes], name: str) -> tuple[int, float]:
    shares = [rank["ms"].get(name, 0.0) / (sum(rank["ms"].values()) or 1.0) for rank in ranks]
    worst = max(range(len(ranks)), key=lambda number: shares[number])
    return worst, shares[worst]
