"""What a breakdown of the steps' time means, in plain words and with something to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ORDER = ("data", "copy", "forward", "backward", "optimizer", "metrics", "step", "agreement", "checkpoint")
NOTHING = "Nothing stands out: the time goes into the training itself."
NOTABLE = 0.15  # of a rank's time

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


def _uneven(ranks: Sequence[RankTimes]) -> list[tuple[float, str]]:
    """Finds a slow rank. In a backward pass, fast ranks wait for slow ones, so the slowest spends the least time in
    it."""
    if len(ranks) < 2:
        return []
    own = [sum(ms for name, ms in rank["ms"].items() if name != "backward") for rank in ranks]
    slowest, quickest = own.index(max(own)), own.index(min(own))
    whole = sum(ranks[quickest]["ms"].values())
    share = (own[slowest] - own[quickest]) / whole if whole else 0.0
    if share < NOTABLE:
        return []
    parts = {name: ms - ranks[quickest]["ms"].get(name, 0.0) for name, ms in ranks[slowest]["ms"].items()}
    parts.pop("backward", None)
    where = max(parts, key=lambda name: parts[name])
    said = (
        f"the others wait for rank {slowest}: {own[slowest] - own[quickest]:.1f} ms a step longer than rank {quickest}"
    )
    return [(share, f"{said}, most of it in {where}. Look at its node, and at its share of the data.")]


def _worst(ranks: Sequence[RankTimes], name: str) -> tuple[int, float]:
    shares = [rank["ms"].get(name, 0.0) / (sum(rank["ms"].values()) or 1.0) for rank in ranks]
    worst = max(range(len(ranks)), key=lambda number: shares[number])
    return worst, shares[worst]
