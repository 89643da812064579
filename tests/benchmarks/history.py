"""What tests and benchmarks took: `make release` adds a line to history.jsonl, and names what has grown.

python -m tests.benchmarks.history 0.2.0 build/tests.xml build/figures.jsonl
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.table import machine

FILE = Path(__file__).with_name("history.jsonl")
MOST = 1.1  # a sum or a figure that grows by more is named


def seconds_of_tests(report: Path) -> dict[str, float]:
    """Returns the seconds of all tests by folder, from pytest's --junitxml."""
    sums: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        folders = case.get("classname", "").split(".")[:-1]
        sums["/".join(folders[:2])] += float(case.get("time", 0))
    return {name: round(seconds, 1) for name, seconds in sorted(sums.items())}


def medians_of_figures(figures: Path) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for line in figures.read_text().splitlines():
        name, value = json.loads(line)
        found[name].append(value)
    return {name: float(f"{statistics.median(values):.3g}") for name, values in sorted(found.items())}


def named(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields the sums and the figures that have grown, of two lines."""
    for kind in ("tests_s", "figures"):
        for name, value in now[kind].items():
            if (earlier := before[kind].get(name)) is not None and value > MOST * earlier:
                yield f"{name}: {earlier:g} before, {value:g} now"


def main(version: str, report: Path, figures: Path) -> None:
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    kind, _, load = machine().rpartition(", load ")
    row: dict[str, Any] = {"version": version, "date": time.strftime("%Y-%m-%d"), "machine": kind, "load": load}
    row |= {"tests_s": seconds_of_tests(report), "figures": medians_of_figures(figures)}
    like = [line for line in lines if line["machine"] == kind]
    print("\n".join(["Grown by more than 10 %:", *named(like[-1], row)]) if like else f"The first release on {kind}.")
    with FILE.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
