"""Subject: a run before its submit, with the facts that the checks need."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from clusterdp.check.finding import Finding
from clusterdp.config import Config
from clusterdp.errors import ClusterdpError
from clusterdp.operate.find.run_index import noted_runs
from clusterdp.rundir import RunDir, read_events
from clusterdp.slurm.nodes import GPUS
from clusterdp.slurm.quantities import megabytes_of, seconds_of
from clusterdp.submission.render.script_spec import ScriptSpec, gpu_count
from clusterdp.wording import counted

if TYPE_CHECKING:  # `submit` itself does not read the program
    from clusterdp.check.program import CodePlace, ProgramText

LEAST_MB = 1024  # of memory: less than a training takes, and as a number without a unit probably meant as gigabytes
MOST_NOTED, MOST = 2000, 20  # runs whose names are compared, and runs whose folders are read


@dataclass(frozen=True)
class Subject:
    """A run before its submit, as the checks see it."""

    spec: ScriptSpec
    sources: Mapping[str, str]  # config key -> file and line that set it
    script: str = ""
    elements: int = 1  # number of elements of a sweep
    last: LastRun | None = None  # the newest earlier run with the same name
    program: ProgramText | None = field(default=None, repr=False)

    @property
    def config(self) -> Config:
        return self.spec.config

    @property
    def ranks(self) -> int:
        """The ranks of the job, at most."""
        return self.config.resources.most_nodes * self.spec.ranks_per_node

    @property
    def nodes_words(self) -> str:
        spare = self.config.resources.spare_nodes
        return counted(self.config.resources.job_nodes, "node") + (f" ({spare} of them spare)" if spare else "")

    def where(self, place: CodePlace) -> str:
        """Returns file and line such as `pkg/train.py:7`, relative to the submit directory."""
        file, folder = place.file, self.spec.submit_dir
        return f"{file.relative_to(folder) if file.is_relative_to(folder) else file}:{place.line}"

    @property
    def cpus_per_node(self) -> int:
        return self.config.resources.cpus_per_task * self.spec.ranks_per_node

    @property
    def gpus_per_node(self) -> int:
        resources = self.config.resources
        of_gres = sum(int(count) for _, count in GPUS.findall(resources.gres or ""))
        of_ranks = gpu_count(resources.gpus_per_task) * self.spec.ranks_per_node
        return gpu_count(resources.gpus_per_node) or of_ranks or of_gres

    @property
    def gpu_key(self) -> str:
        names = ("gpus_per_node", "gpus_per_task", "gres")
        return next((f"resources.{name}" for name in names if getattr(self.config.resources, name)), "resources")

    @property
    def gpu_type(self) -> str:
        resources = self.config.resources
        of_gres = next((kind for kind, _ in GPUS.findall(resources.gres or "")), "")
        return (resources.gpus_per_node or resources.gpus_per_task or f"{of_gres}:").rpartition(":")[0]

    @cached_property
    def time_s(self) -> float | None:
        """The time limit of the config in seconds; infinite if the config asks for no limit."""
        asked = self.config.resources.time or ""
        if re.fullmatch(r"(?i)unlimited|infinite|-1", asked):
            return math.inf
        seconds = seconds_of(asked)
        return math.inf if seconds == 0 else seconds

    @cached_property
    def _memory(self) -> tuple[str, str, float, float]:
        """Returns (key, words, megabytes on each node, megabytes for the unit that the config uses: a node, a CPU or a
        GPU)."""
        resources = self.config.resources
        if amount := megabytes_of(resources.mem or ""):
            return "resources.mem", f"{resources.mem}", amount, amount
        for option, count in (("mem-per-cpu", self.cpus_per_node), ("mem-per-gpu", self.gpus_per_node)):
            said = str(resources.extra.get(option, ""))
            if amount := megabytes_of(said):
                total = amount * count
                return f"resources.extra.{option}", f"{count} x {said} = {total:.0f}M", total, amount
        return "resources.mem", "", 0.0, 0.0

    @property
    def asks_all_memory(self) -> bool:
        return megabytes_of(self.config.resources.mem or "") == 0

    @property
    def memory_key(self) -> str:
        return self._memory[0]

    @property
    def memory_words(self) -> str:
        return self._memory[1]

    @property
    def memory_mb(self) -> float:
        """The memory of each node in MB; 0 if the config asks for no memory."""
        return self._memory[2]

    @property
    def memory_of_unit_mb(self) -> float:
        """The requested memory in MB for the unit that the config uses: a node, a CPU or a GPU."""
        return self._memory[3]


def memory_findings(subject: Subject) -> Iterator[Finding]:
    """Yields a finding for a small number without a unit, such as `mem: 64`."""
    key, said = subject.memory_key, f"{subject.memory_of_unit_mb:.0f}"
    given = subject.config.resources.mem or subject.config.resources.extra.get(key.removeprefix("resources.extra."), "")
    if str(given) == said != "0" and subject.memory_mb < LEAST_MB:
        why = "a process that loads torch takes more, and is ended as out of memory"
        remedy = f"Write {said}G for gigabytes, or {said}M."
        yield Finding("warning", key, f"{said} is {said} MB: Slurm counts megabytes", why, remedy)


@dataclass(frozen=True)
class LastRun:
    """The last run with the same name. `bytes` is the size of its largest checkpoint. `save_s` is the time of its
    slowest save; None if not recorded."""

    path: Path
    bytes: int
    save_s: float | None


def last_run(name: str, submit_dir: Path) -> LastRun | None:
    """Returns the last run with this name that was submitted from this folder. Checkpoints in object stores are not
    read."""
    return next(filter(None, map(_look, itertools.islice(_runs(name, submit_dir), MOST))), None)


def _runs(name: str, submit_dir: Path) -> Iterator[Path]:
    for noted in itertools.islice(noted_runs(), MOST_NOTED):
        path = Path(noted.path)
        if noted.submit_dir == str(submit_dir) and (path.name == name or path.name.startswith(f"{name}-")):
            yield path


def _look(path: Path) -> LastRun | None:
    run = RunDir(path)
    saves = [event for event in read_events(run) if event.get("event") == "saved"]
    sizes = [event["bytes"] for event in saves if isinstance(event.get("bytes"), int)]
    if not sizes:
        from clusterdp.checkpoint.format.manifest import list_checkpoints  # 20 ms

        try:
            sizes = [info.bytes for info in list_checkpoints(run.checkpoints)]
        except (OSError, ClusterdpError):
            return None
    times = [float(event["seconds"]) for event in saves if isinstance(event.get("seconds"), (int, float))]
    return LastRun(path, max(sizes), max(times, default=None)) if sizes else None
