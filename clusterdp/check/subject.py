"""Subject: all that is looked at of a run that is to be submitted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from clusterdp.config import Config
from clusterdp.launch.render.script_spec import ScriptSpec, gpu_count
from clusterdp.slurm.nodes import GPUS
from clusterdp.slurm.quantities import megabytes_of, seconds_of

if TYPE_CHECKING:  # `submit` looks at the room alone
    from clusterdp.check.last_run import LastRun
    from clusterdp.check.program import Place, ProgramText


@dataclass(frozen=True)
class Subject:
    """`sources`: where each value of the config stands. `elements`: of a sweep. `last`: the newest run of this name."""

    spec: ScriptSpec
    sources: Mapping[str, str]
    script: str = ""
    elements: int = 1
    last: LastRun | None = None
    program: ProgramText | None = field(default=None, repr=False)

    @property
    def config(self) -> Config:
        return self.spec.config

    @property
    def ranks(self) -> int:
        return self.config.resources.nodes * self.spec.ranks_per_node

    def where(self, place: Place) -> str:
        """`pkg/train.py:7`, from the submit directory."""
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
        """What the config asks for; infinite for no limit."""
        asked = self.config.resources.time or ""
        if re.fullmatch(r"(?i)unlimited|infinite|-1", asked):
            return math.inf
        seconds = seconds_of(asked)
        return math.inf if seconds == 0 else seconds

    @cached_property
    def _memory(self) -> tuple[str, str, float, float]:
        """(key, words, megabytes of a node, megabytes of what they are given for: a node, a CPU or a GPU)"""
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
    def memory_key(self) -> str:
        return self._memory[0]

    @property
    def memory_words(self) -> str:
        return self._memory[1]

    @property
    def memory_mb(self) -> float:
        """Of each node; 0 if none is asked for."""
        return self._memory[2]

    @property
    def memory_of_unit_mb(self) -> float:
        """Of a node, a CPU or a GPU, as the config has it."""
        return self._memory[3]
