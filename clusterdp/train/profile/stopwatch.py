"""Stopwatch: measures the time of each part of a step, at almost no cost.

    watch = job.stopwatch                       # in a Loop it runs by itself: data, copy, saves, and the rest
    for x, y in loop:
        loss = criterion(model(x), y);   watch.lap("forward")
        loss.backward();                 watch.lap("backward")
        optimizer.step();                watch.lap("optimizer")

A lap is the time since the previous lap, on the host. The host does not wait for a GPU's work: on a GPU, the laps show
only the host's own waits, such as for data. torch.profiler shows the device's own time.

    data        waiting for the loader
    copy        moving batches to the device, and the function move= (a Trainer's transform=), in this process
    backward    also averages the gradients over all ranks. Laps do not show how much of that runs during the
                computation (profile.trace does), only for which slow rank the others wait
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.data.loader_defaults import cpus_of_rank
from clusterdp.train.hang import page
from clusterdp.train.hang.page import AFTER, DATA, PHASE, STEP
from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.train.output.attempt_record import AttemptRecord
    from clusterdp.train.ranks.group import Group
    from clusterdp.train.ranks.rank import Rank

WORTH_A_LINE_S = 60.0  # seconds of training; after a shorter training, the report is only in the file
WARM_UP = 5  # first steps, which are not counted because they allocate, compile, and wait for the loader
ORDER = ("data", "copy", "forward", "backward", "optimizer", "metrics", "step", "agreement", "checkpoint")
NOTHING = "Nothing stands out: the time goes into the training itself."
NOTABLE = 0.15  # share of a rank's time from which a finding is reported
WAITS = {"backward", "agreement", "checkpoint"}  # laps in which a rank also waits for other ranks
RankTimes = Mapping[str, Any]  # {"ms": {"data": 1.5, ...}, "workers": 2, "cpus": 8}


class Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps = 0
        self.has_own_laps = False  # whether the program makes laps, as a Trainer's default step does
        self.page = page.current()  # the page shows the phase to the rank's watcher
        self._after = dict(AFTER)
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """Counts the time since the previous lap as `name`."""
        now = time.perf_counter()
        try:
            self.seconds[name] += now - self._at
            self.page[PHASE] = self._after[name]
        except KeyError:
            self._first_lap(name, now)
        self._at = now

    def _first_lap(self, name: str, now: float) -> None:
        self.seconds[name] = now - self._at
        self.page[PHASE] = self._after.setdefault(name, self.page[PHASE])  # a user's own lap keeps the phase

    def begin(self, step: int) -> None:
        """Begins an epoch, at this step of the run."""
        self.page[STEP] = step
        self.page[PHASE] = DATA

    def skip(self) -> None:
        """Leaves out the time since the previous lap, which belongs to no step but, for example, to an evaluation."""
        self._at = time.perf_counter()

    @property
    def data_s(self) -> float:
        """Mean seconds for which a step has waited for its batch."""
        return self.seconds.get("data", 0.0) / max(1, self.steps if self.steps < WARM_UP else self.steps - WARM_UP)

    def step(self) -> None:
        """Ends a step."""
        self.steps += 1
        if self.steps == WARM_UP:
            self._at += _wait_for_gpu()
            self.seconds.clear()

    def report(self, group: Group, **facts: Any) -> dict[str, Any] | None:
        """Returns all ranks' times, in ms per step, and findings as text; None if too few steps were measured.
        Collective. facts: this rank's workers, cpus and node, for the diagnosis.
        """
        steps = self.steps - WARM_UP
        if waited_s := _wait_for_gpu():  # without the wait, queued steps would count as done, and look too fast
            self.seconds["step"] = self.seconds.get("step", 0.0) + waited_s
            self._at += waited_s
        mine = {"ms": {name: 1e3 * s / steps for name, s in self.seconds.items()} if steps > 0 else {}, **facts}
        ranks = group.gather(mine)
        if not all(rank["ms"] for rank in ranks):
            return None
        words = {"table": table(ranks), "diagnosis": diagnose(ranks), "stragglers": stragglers(ranks)}
        return {"steps": steps, "ranks": ranks, **words}


def _wait_for_gpu() -> float:
    """Waits for all queued work of this rank's GPU. Returns the seconds of waiting."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    began = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def report_times(
    stopwatch: Stopwatch, rank: Rank, record: AttemptRecord, loader: Any, *, aloud: bool = True
) -> dict[str, Any] | None:
    """Writes the report to the run folder and, if `aloud`, prints the diagnosis. Collective; called at the end of a
    loop, and sometimes before."""
    workers = getattr(loader, "num_workers", None)
    cpus, node = cpus_of_rank(rank.local_world_size), SlurmEnv.read().node_name
    report = stopwatch.report(rank.group, workers=workers, cpus=cpus, node=node)
    if report is None or not rank.is_first:
        return report
    record.write_times(report)
    spent_s = report["steps"] * sum(report["ranks"][0]["ms"].values()) / 1000
    if aloud and report["diagnosis"] != [NOTHING] and spent_s >= WORTH_A_LINE_S:
        say("clusterdp: " + " ".join(report["diagnosis"]))
    return report


def table(ranks: Sequence[RankTimes]) -> list[str]:
    """Returns a line per rank: ms per step in total, and the share of each part."""
    found = {name for rank in ranks for name in rank["ms"]}
    names = [*(name for name in ORDER if name in found), *sorted(found - set(ORDER))]
    lines = ["rank   ms a step" + "".join(f"{name:>12}" for name in names)]
    for number, rank in enumerate(ranks):
        whole = sum(rank["ms"].values())
        shares = "".join(f"{100 * rank['ms'].get(name, 0.0) / whole:>10.1f} %" for name in names)
        lines.append(f"{number:4} {whole:>11.2f}{shares}")
    return lines


def diagnose(ranks: Sequence[RankTimes]) -> list[str]:
    """Returns findings, the worst first. If nothing is found, the list has the line NOTHING."""
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
        return [(share, f"{said}: its loader is not a DataLoader; make that one faster.")]
    said += f": {workers} workers on {cpus} cpus"
    if cpus and workers < cpus - 1:
        return [(share, f"{said}; try num_workers: {cpus - 1}.")]
    more = f"ask for more (resources.cpus_per_task: {2 * max(2, cpus or 1)})"
    return [(share, f"{said}; {more}, or make a sample cheaper to read.")]


def _copy(ranks: Sequence[RankTimes]) -> list[tuple[float, str]]:
    """Returns a finding if a rank spends much time on copying batches to the device. Copies run in the training
    process: more workers help only if work is moved to the workers."""
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
    """Returns ranks whose own work takes longer than the median's by a notable share of a step, the slowest first.

    Own work is a rank's work without waits for others. Without a lap "forward", a step is one lap that includes waits;
    then only the laps data and copy are compared. On a GPU, a rank's own work is only the work of its host.
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
    """Returns a finding if other ranks wait for a slow rank. In a backward pass, fast ranks wait for slow ranks;
    therefore the slowest rank spends the least time in it."""
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
