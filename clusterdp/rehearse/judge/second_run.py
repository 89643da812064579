"""The verdicts from two undisturbed runs alone: faults of two runs at the same time, and ranks that write over each
other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from clusterdp.check.program import ProgramText
from clusterdp.rehearse.judge.lost_state import at
from clusterdp.rehearse.judge.verdict import FAILED, Verdict
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import is_checkpoint
from clusterdp.wording import some_of

BESIDE, BESIDE_ABOUT = "beside-another", "two of it at a time: is anything not its own?"
WRITERS, WRITERS_ABOUT = "one-writer", "is each checkpoint written by one rank alone?"
# Places of temporary files, where only a checkpoint that stays after the run matters.
PASSING = ("/tmp/", "/var/tmp/", "/dev/shm/")
NO_FILES = ("/dev/", "/proc/", "/sys/")


def beside_another(first: Facts, second: Facts, folder: Path, text: ProgramText | None) -> Verdict | None:
    """Returns a verdict on ports and files that two undisturbed runs share, or None. `folder`: of the rehearsal."""
    ports = sorted(set(first.ports) & set(second.ports))
    if ports:
        said = f"both undisturbed runs listened on port {some_of([str(port) for port in ports], 3)}"
        places = [place for place in (text.fixed_ports if text else []) if str(ports[0]) in place.text]
        where = f" ({at(places[0])})" if places else ""
        remedy = "Two jobs on a node would meet; MASTER_PORT is the job's own"
        diagnosis = f"a port is hard-coded: {ports[0]}{where}. {remedy}"
        return Verdict(BESIDE, BESIDE_ABOUT, FAILED, said, diagnosis)
    paths = [path for path in first.written if path in second.written and _is_foreign(path, folder)]
    if not paths:
        return None
    said = f"undisturbed runs wrote {some_of(paths, 3)}"
    diagnosis = f"an absolute path is in the code: {paths[0]}. Two runs would write over each other"
    return Verdict(BESIDE, BESIDE_ABOUT, FAILED, said, diagnosis)


def not_apart(went_on: str, found: Verdict | None) -> Verdict:
    """Returns the verdict for a second undisturbed run that cannot be compared because it resumed from the first run's
    files.

    `went_on`: the evidence. `found`: the verdict of beside_another().
    """
    why = found.diagnosis if found else "it goes on from files outside of its run folder; give each run its own"
    said = f"{went_on}, though it had a folder of its own"
    return Verdict(BESIDE, BESIDE_ABOUT, FAILED, said, f"{said}: {why}")


def went_on(first: Sequence[int], second: Sequence[int]) -> str:
    """Returns words if the second run resumed from the first run's files, by the steps that both runs printed, else "".

    A small difference does not count, because a progress bar may print its first step later.
    """
    if not first or first[0] == first[-1]:
        return ""
    if not second:
        return "the second undisturbed run did no step"
    apart = max(b - a for a, b in itertools.pairwise(first))
    late = second[0] > first[0] + apart
    return f"the second undisturbed run began at step {second[0]}, and the first at {first[0]}" if late else ""


def left_outside(facts: Facts, folder: Path) -> list[str]:
    """Returns the checkpoints that a run has left outside of the rehearsal's folder."""
    left = [path for path in facts.written if is_checkpoint(path) and _is_foreign(path, folder)]
    return [path for path in left if os.path.exists(path)]


def shared_files(facts: Facts, text: ProgramText | None) -> Verdict | None:
    """Returns a verdict if several ranks of an undisturbed run had the same checkpoint open for writing at the same
    time, else None.
    """
    shared = {path: use for path, use in facts.files.items() if len(use.by) > 1}
    if not shared:
        return None
    path = max(shared, key=lambda path: len(shared[path].by))
    ranks = some_of([str(rank) for rank in shared[path].by], 5)
    said = f"ranks {ranks} had {path} open for writing at the same time"
    saves = text.saves if text else []
    where = f" ({at(saves[0])})" if len(saves) == 1 else ""
    diagnosis = f"several ranks write one file{where}: {said}. Let one rank save, or give each rank a file of its own"
    return Verdict(WRITERS, WRITERS_ABOUT, FAILED, said, diagnosis)


def _is_foreign(path: str, folder: Path) -> bool:
    if path.startswith((f"{folder}/", *NO_FILES)) or path.endswith(".lock") or "/.cache/" in path:
        return False  # programs share locks and caches on purpose
    return not path.startswith(PASSING) or (is_checkpoint(path) and os.path.exists(path))
