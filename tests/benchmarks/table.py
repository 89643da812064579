"""Rows of measurements: taken in turns, so that a machine that slows down slows all of them, and printed as a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Measure = Callable[[], float]  # one measurement, in seconds


@dataclass(frozen=True)
class Row:
    """Measured times of one thing, and the name of the row that it is compared with."""

    name: str
    seconds: Sequence[float]
    beside: str | None = None

    @property
    def median_ms(self) -> float:
        return 1000 * statistics.median(self.seconds)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return 1000 * low, 1000 * high


def rounds_of(about: str | None, rounds: int) -> int:
    """--rounds of a benchmark."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--rounds", type=int, default=rounds)
    return int(options.parse_args().rounds)


def take_turns(measures: Mapping[str, Measure], rounds: int, beside: Mapping[str, str]) -> list[Row]:
    """`rounds` measurements of each; a first one of each warms the caches and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(-1, rounds):
        for name, measure in measures.items():
            taken = measure()
            if turn >= 0:
                seconds[name].append(taken)
            if sys.stderr.isatty():
                print(f"\r{turn + 1}/{rounds} {name:40}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return [Row(name, taken, beside.get(name)) for name, taken in seconds.items()]


def keep(name: str, value: float) -> None:
    """For the comparison with README that ends `make bench`."""
    if file := os.environ.get("CLUSTERDP_BENCH_FIGURES"):
        with open(file, "a") as figures:
            figures.write(json.dumps([name, value]) + "\n")


def show(title: str, rows: Sequence[Row]) -> None:
    medians = {row.name: row.median_ms for row in rows}
    print(f"{title}\n{machine()}; medians of {len(rows[0].seconds)}, taken in turns\n")
    print(f"{'':44}{'median':>10}  {'half lies within':>20}   beside")
    for row in rows:
        low, high = row.quartiles_ms
        ratio = f"{row.median_ms / medians[row.beside]:.2f} x {row.beside}" if row.beside else ""
        print(f"{row.name:44}{row.median_ms:>7.0f} ms  {f'{low:.0f} to {high:.0f} ms':>20}   {ratio}")
        keep(f"{title}: {row.name}, ms", row.median_ms)
        keep(f"{title}: {row.name}, ratio", row.median_ms / medians[row.beside] if row.beside else 1)


def machine() -> str:
    python, load = platform.python_version(), os.getloadavg()[0]
    return f"{os.cpu_count()} CPUs ({platform.machine()}), {platform.system()}, Python {python}, load {load:.1f}"
