"""Values that are read otherwise than they were meant: hours as minutes, GPUs without ranks, directives in a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.config.foreign_keys import key_for
from clusterdp.config.tree import ResourcesConfig
from clusterdp.launch.script_spec import lines_of
from clusterdp.slurm.nodes import GPUS
from clusterdp.wording import duration

DIRECTIVE = re.compile(r"\s*#SBATCH\s+(?:--(?P<long>[a-z][a-z-]*)|-\w).*")


def misread_findings(subject: Subject) -> Iterator[Finding]:
    yield from _of_time(subject)
    yield from _of_gpus(subject)
    yield from _of_directives(subject)


def _of_time(subject: Subject) -> Iterator[Finding]:
    asked = subject.config.resources.time or ""
    if re.fullmatch(r"\d+:\d\d", asked) and subject.time_s:
        minutes = asked.partition(":")[0]
        what = f"{asked} is {duration(subject.time_s)}: Slurm reads MINUTES:SECONDS"
        why = "the run is stopped each time that is over"
        remedy = f'Write "{asked}:00" for hours, or {minutes} for minutes.'
        yield Finding("hint", "resources.time", what, why, remedy)


def _of_gpus(subject: Subject) -> Iterator[Finding]:
    """Only gpus_per_node, and tasks_per_node, make ranks."""
    resources = subject.config.resources
    if resources.tasks_per_node or resources.gpus_per_node or resources.gpus_per_task:
        return
    of_gres = sum(int(count) for _, count in GPUS.findall(resources.gres or ""))
    asked = str(resources.extra.get("gpus", "")).rpartition(":")[2]
    of_extra = int(asked) // resources.nodes if asked.isdecimal() else 0
    key = "resources.gres" if of_gres else "resources.extra.gpus"
    if (each := of_gres or of_extra) > 1:
        what = f"one rank on each node, for its {each} GPUs: only gpus_per_node makes a rank for each"
        why = "the others are idle, unless the program uses several"
        remedy = f"Write resources.gpus_per_node: {each} instead, or say how many ranks: tasks_per_node."
        yield Finding("warning", key, what, why, remedy)


def _of_directives(subject: Subject) -> Iterator[Finding]:
    if subject.spec.kind != "script":
        return
    lines = lines_of(subject.config.script, "script").splitlines()
    found = [(number, match) for number, line in enumerate(lines, 1) if (match := DIRECTIVE.match(line))]
    if not found:
        return
    number, first = found[0]
    file, _, line = subject.sources.get("script", "").rpartition(":")
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    what = f"directives in it do nothing: {first[0].strip()}{others}"
    why = "sbatch reads those of the job's own script, which are made of resources:"
    names = dict.fromkeys(match["long"] for _, match in found if match["long"])
    own = {each.name.replace("_", "-"): f"resources.{each.name}" for each in fields(ResourcesConfig)}
    own["gres"] = "resources.gpus_per_node"  # nearly always
    keys = ", ".join(filter(None, (own.get(name) or key_for(name) for name in names)))
    remedy = f"Write {keys}." if keys else "Write them below resources:, or below resources.extra."
    where = f"{file}:{int(line) + number}" if line.isdecimal() else ""
    yield Finding("warning", "script", what, why, remedy, where)
