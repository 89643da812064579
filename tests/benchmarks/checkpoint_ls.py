"""How long `clusterdp checkpoint ls` takes over 1,000 checkpoints, beside Python that starts and ends."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from clusterdp.checkpoint.format import layout
from clusterdp.checkpoint.format.layout import HEADER, FlatLayout
from clusterdp.checkpoint.format.manifest import CheckpointInfo, FileRecord, Manifest
from tests.benchmarks.startup import BARE, clusterdp, timed
from tests.benchmarks.table import rounds_of, show, take_turns

COUNT = 1000
LS = f"clusterdp checkpoint ls, {COUNT} checkpoints"


def main() -> None:
    rounds = rounds_of(__doc__, 20)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        make_manifests(Path(name), COUNT)
        measures = {BARE: timed([sys.executable, "-c", "pass"]), LS: timed(clusterdp("checkpoint", "ls", name))}
        rows = take_turns(measures, rounds, {LS: BARE})
    show("Listing checkpoints", rows)


def make_manifests(folder: Path, count: int, tensors: int = 200) -> None:
    """Manifests of a state of many tensors, 20 kB each, and no data: `ls` reads neither bodies nor data."""
    plan = FlatLayout.of({f"model/layers.{i}.weight": ("float32", (64, 64)) for i in range(tensors)})
    for order in range(1, count + 1):
        token = f"0123456789ab-{order:04d}"
        info = CheckpointInfo(100 * order, token, token, order, 1.7e9 + order, 1, plan.total, "123456.0")
        sizes = {layout.slice_name(token, 0, 1): HEADER + plan.total, layout.rank_name(token, 0): 9000}
        files = {name: FileRecord(size, (0,) * -(-size // layout.BLOCK)) for name, size in sizes.items()}
        path = folder / info.name
        path.parent.mkdir()
        path.write_bytes(Manifest(info, files, plan, {}, {}).encode())


if __name__ == "__main__":
    main()
