"""The fields of squeue --steps."""

from __future__ import annotations

from dataclasses import dataclass

from clusterdp.fakeslurm.commands.columns import PrintField
from clusterdp.fakeslurm.commands.squeue_fields import NULL
from clusterdp.fakeslurm.core.model import JobRecord, Step
from clusterdp.fakeslurm.core.times import limit_clock, short_clock, stamp
from clusterdp.fakeslurm.slurmctld.controller import Controller
from clusterdp.slurm.hostlist import compress


@dataclass(frozen=True)
class SqueueStep:
    job: JobRecord
    step: Step
    controller: Controller

    @property
    def name(self) -> str:
        return f"{self.job.id if self.job.het else self.job.name_of_id}.{self.step.id}"


def _s(title: str, value: object) -> PrintField[SqueueStep]:
    return PrintField(title, value)  # type: ignore[arg-type]


STEP_LETTERS: dict[str, PrintField[SqueueStep]] = {
    "A": _s("TASKS", lambda r: str(r.step.tasks)),
    "b": _s("TRES_PER_NODE", lambda r: r.step.tres_per_node or NULL),
    "i": _s("STEPID", lambda r: r.name),
    "j": _s("NAME", lambda r: r.step.name),
    "l": _s("TIME_LIMIT", lambda r: limit_clock(r.step.minutes)),
    "M": _s("TIME", lambda r: short_clock(r.controller.clock() - r.step.start)),
    "N": _s("NODELIST", lambda r: compress(r.step.nodes)),
    "P": _s("PARTITION", lambda r: r.job.desc.partition),
    "S": _s("START_TIME", lambda r: stamp(r.step.start)),
    "u": _s("USER", lambda r: r.controller.user.name),
    "U": _s("UID", lambda r: str(r.controller.user.uid)),
}
