"""The run folder of a job of many nodes, which hangs, then loses a node, and then fails because a rank is killed. It
has the files of a real run of four ranks, for each attempt, rank and checkpoint."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from clusterdp.checkpoint.format import layout
from clusterdp.checkpoint.format.checksum import checksums
from clusterdp.checkpoint.format.layout import FlatLayout
from clusterdp.checkpoint.format.manifest import CheckpointInfo, FileRecord, Manifest, Section
from clusterdp.checkpoint.format.node_file import NodeFile
from clusterdp.config import from_mapping
from clusterdp.rundir import Attempt
from clusterdp.submission.plan import make_plan
from tests.operate.builder import AttemptBuilder, RunBuilder

PER_NODE = 8
STEPS = 1000  # of an attempt, each with a record of metrics
RANK_FILE, LOCAL_FILE = 12_928, 11_648  # bytes of a rank's own state in a checkpoint: JSON with spaces, and tensors
FRAMES = "".join(f'  File "/project/train.py", line {line}, in main\n    loss.backward()\n' for line in range(12))
STACK = "Current thread 0x00007faf73bc1b80 (most recent call first):\n" + FRAMES
FOLLOWED = f"Traceback (most recent call last):\n{FRAMES}RuntimeError: [tcp/pair.cc:553] Connection closed by peer\n"
FOLLOWED += "clusterdp: this follows from another rank's failure: "


class LargeRun:
    """The middle rank, and its node, are those that fail. `apart`: each rank has a log, as in older runs."""

    def __init__(self, path: Path, nodes: int, checkpoints: int = 3, apart: bool = False):
        self.apart = apart
        self.nodes, self.ranks = nodes, nodes * PER_NODE
        self.middle, self.host = self.ranks // 2, f"n{nodes // 2 + 1}"
        self.said: list[str] = []  # the batch program's output
        builder = RunBuilder(path).submitted(backend="sbatch", dir=str(path.parent), folder=str(path), cluster="")
        self.run = builder.run
        size = {"nodes": nodes, "tasks_per_node": PER_NODE}
        about = {"entry": "clusterdp.recipes.digits:main", "run_dir": str(path), "resources": size}
        make_plan(from_mapping(about)).write_config()
        for number, name in enumerate(("7.0", "7.0.1", "7.0.2")):
            attempt = builder.attempt(name, f"n[1-{nodes}]", cpus=f"8(x{nodes})", gpus=0)
            attempt.restored(number * STEPS).trained(number * STEPS + 1, (number + 1) * STEPS, 10 * STEPS)
            attempt.saved((number + 1) * STEPS).spent((number + 1) * STEPS, startup=3.0, restore=1.0, steps=90.0)
            self._write_records(attempt.files)
            (self._hang, self._lose_node, self._kill)[number](attempt)
        builder.batch_log("".join(f"{line}\n" for line in self.said))
        for order in range(1, checkpoints + 1):
            self._save(order)

    def _write_records(self, attempt: Attempt) -> None:
        times = [
            {"ms": {"data": 0.1, "step": 8.6, "checkpoint": 0.2}, "workers": 0, "node": self._node(rank)}
            for rank in range(self.ranks)
        ]
        table = [f"{rank:4} {8.9:>11.2f}{0.8:>10.1f} %{97.0:>10.1f} %" for rank in range(self.ranks)]
        report = {
            "steps": STEPS,
            "ranks": times,
            "table": table,
            "diagnosis": ["Nothing stands out."],
            "stragglers": [],
        }
        attempt.times.write_text(json.dumps(report, indent=1))
        (attempt.path / "began").write_text(f"1700000000 2023-11-14T22:13:20 0 n[1-{self.nodes}]\n")
        (attempt.path / "exit").write_text("1 100 1700000100\n")
        (attempt.path / "chain").write_text("7\n")
        attempt.key.write_bytes(bytes(32))
        (attempt.logs / "keepers.log").write_text(f"slurmstepd: error: *** STEP 7.1 ON {self._node(0)} CANCELLED ***\n")

    def _print(self, attempt: Attempt, end: str) -> None:
        """Writes the rank's logs. `end`: how they end, but for the middle rank's."""
        for node in range(self.nodes):
            ranks = range(node * PER_NODE, (node + 1) * PER_NODE)
            texts = {rank: self._said(rank) + (end if rank != self.middle else "") for rank in ranks}
            if self.apart:
                for rank, text in texts.items():
                    _write(attempt.rank_log(rank), text)
            else:
                in_turn = itertools.zip_longest(*(text.splitlines(keepends=True) for text in texts.values()))
                lines = [f"{rank}: {line}" for each in in_turn for rank, line in zip(ranks, each, strict=True) if line]
                _write(attempt.logs / f"node-{node:05d}.log", "".join(lines))

    def _said(self, rank: int) -> str:
        said = f"clusterdp: rank {rank} of {self.ranks} on {self._node(rank)}, cpu; clusterdp 0.1.0, torch 2.13.0\n"
        return said + f"step {STEPS}\n" * 10

    def _hang(self, attempt: AttemptBuilder) -> None:
        files, reason = attempt.files, f"rank {self.middle} on {self.host}: step 1001, in the step; the others wait"
        files.hang_folder.mkdir()
        files.hang.write_text(f"No sign of progress for 5 min: {reason}.\n\n--- rank {self.middle}\n{STACK}")
        for path in (files.hang_nodes, files.hung, files.avoid):
            path.write_text(f"{self.host}\n")
        about = {"ranks": [self.middle], "nodes": self.host, "step": STEPS, "phase": "step", "reason": reason}
        attempt.builder.event("hang", files.name, "hang0", **about)
        self._print(files, f"clusterdp: ending rank 1: the attempt has hung; see {files.hang}\n")
        self._end("Killed")
        attempt.exited(137).restarted("hung", exit=137)

    def _lose_node(self, attempt: AttemptBuilder) -> None:
        attempt.builder.event("silent", attempt.files.name, "batch", nodes=self.host)
        self.said.append(f"srun: error: Node failure on {self.host}")
        self._print(attempt.files, f"{FOLLOWED}the agent of n1 has ended, or cannot be reached\n")
        self._end("Exited with exit code 1")
        attempt.files.avoid.write_text(f"{self.host}\n")
        attempt.exited(1).restarted("node-lost")

    def _kill(self, attempt: AttemptBuilder) -> None:
        self.said.append(f"srun: error: {self.host}: task {self.middle}: Killed")
        self._print(attempt.files, f"{FOLLOWED}rank {self.middle}: its process has ended\n")
        self._end("Exited with exit code 1")
        said = f"srun: {self.host}: task {self.middle}: Killed"
        attempt.exited(137).failed(exit=137, rank=self.middle, error=said, reason="restart.max_crashes is 3")

    def _end(self, how: str) -> None:
        self.said += (
            f"srun: error: n{node}: tasks {8 * node - 8}-{8 * node - 1}: {how}" for node in range(1, self.nodes + 1)
        )

    def _node(self, rank: int) -> str:
        return f"n{rank // PER_NODE + 1}"

    def _save(self, order: int) -> None:
        """The files are sparse, and full of zeros where there is no header."""
        plan = FlatLayout.of({f"model/{i}.weight": ("float32", (64, self.ranks)) for i in range(16)})
        token = f"0123456789ab-{order:04d}"
        info = CheckpointInfo(order * STEPS, token, token, order, 1.7e9 + order, self.ranks, plan.total, "7.0")
        folder = self.run.checkpoints / info.folder
        folder.mkdir(parents=True)
        files = {}
        for number in range(self.nodes):
            spans = {rank: plan.span(rank, self.ranks) for rank in range(PER_NODE * number, PER_NODE * (number + 1))}
            slices = {rank: stop - start for rank, (start, stop) in spans.items()}
            node = NodeFile.of(token, number, slices, RANK_FILE + LOCAL_FILE, {})
            places = {node.name: (0, node.head)}
            for rank, size in slices.items():
                places[layout.slice_name(token, rank, self.ranks)] = (node.slices[rank], bytes(size))
                places[layout.rank_name(token, rank)] = (node.own[rank], bytes(RANK_FILE))
                places[layout.local_name(token, rank)] = (node.own[rank] + RANK_FILE, bytes(LOCAL_FILE))
            for name, (start, data) in places.items():
                section = Section(number, start, node.name, node.total)
                files[name] = FileRecord(len(data), checksums(memoryview(data)), section)
            (folder / node.name).write_bytes(node.head)
            os.truncate(folder / node.name, node.total)
        (folder / layout.manifest_name(token)).write_bytes(Manifest(info, files, plan, {}, {}).encode())


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
