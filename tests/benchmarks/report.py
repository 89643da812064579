"""How long `clusterdp report` takes for 1,000,000 records of metrics, beside parsing them; how large the page is."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterdp.operate.report.page import page_of
from clusterdp.rundir import RunDir
from tests.benchmarks.table import Measure, rounds_of, show, take_turns

RECORDS = 1_000_000
PARSE, REPORT = "json.loads of each line", "report"


def main() -> None:
    rounds = rounds_of(__doc__, 5)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        run = made(Path(name) / "run")
        rows = take_turns(measures(run), rounds, {REPORT: PARSE})
        size = len(page_of([run], time.time()))
    show(f"A report of {RECORDS:,} records; its page has {size / 1e6:.2f} MB", rows)


def made(path: Path) -> RunDir:
    run = RunDir(path)
    for folder in (run.metrics, run.events, run.attempt("7.0").path):
        folder.mkdir(parents=True)
    run.config.write_text("name: bench\n")
    with (run.metrics / "7.0.jsonl").open("w") as file:
        for step in range(1, RECORDS + 1):
            record = {"time": 1.7e9 + step / 10, "step": step, "total": RECORDS, "epoch": 1, "loss": 1 / step}
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    return run


def measures(run: RunDir) -> dict[str, Measure]:
    def parse() -> None:
        with (run.metrics / "7.0.jsonl").open("rb") as file:
            for line in file:
                json.loads(line)

    return {PARSE: lambda: timed(parse), REPORT: lambda: timed(lambda: page_of([run], time.time()))}


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
