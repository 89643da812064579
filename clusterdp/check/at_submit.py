"""The checks that every `submit` makes: they find errors in milliseconds, without asking Slurm."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from clusterdp.check.finding import place_of
from clusterdp.check.subject import Subject, last_run, memory_findings
from clusterdp.check.surroundings.storage_room import room_findings
from clusterdp.submission.render.script_spec import unused_variables

if TYPE_CHECKING:
    from clusterdp.submission.render.script_spec import ScriptSpec


def tell_errors(spec: ScriptSpec, sources: Mapping[str, str], elements: int = 1) -> None:
    """Prints a line for each error and each misread amount of memory on stderr, and a line about variables of sbatch
    without effect. Such an error does not stop the submit, because the user may know better."""
    if said := unused_variables(os.environ):
        print(f"clusterdp: {said}", file=sys.stderr)
    subject = Subject(spec, sources, elements=elements, last=last_run(spec.config.name, spec.submit_dir))
    errors = [finding for finding in room_findings(subject) if finding.level == "error"]
    for finding in (*errors, *memory_findings(subject)):
        place = place_of(finding.key, sources)
        at = f"{place}: " if place else ""
        print(f"clusterdp: {at}{finding.key}: {finding.what}: {finding.why}. {finding.remedy}", file=sys.stderr)
