"""Compared: the files of a run that were compared with the undisturbed runs, and the files that were left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from clusterdp.errors import CheckpointError
from clusterdp.rehearse.judge.reference import Reference
from clusterdp.rehearse.state import EndState, compare, of_files
from clusterdp.rundir import RunDir
from clusterdp.wording import counted, some_of

LOGS = (".log", ".txt", ".csv", ".tsv", ".jsonl")
STATES = (".pt", ".pth", ".ckpt", ".safetensors", ".npz", ".npy")
LARGEST = 1 << 26  # bytes of the largest file that is read
OTHER_KIND = "neither logs nor arrays"
UNSTEADY = "other in each undisturbed run"
LARGE = f"over {LARGEST >> 20} MiB"
UNREADABLE = "not readable"
BEFORE = "not written again after the fault"


@dataclass
class Compared:
    """The files of a run that were compared with the undisturbed runs, and the files that were left out."""

    what: list[str] = field(default_factory=list)  # name and number of values or lines of each file
    other: list[str] = field(default_factory=list)  # differences in files beside the end state, which fail no drill
    left_out: dict[str, list[str]] = field(default_factory=dict)  # names of files that were not compared, by the reason

    def leave_out(self, name: str, why: str) -> None:
        self.left_out.setdefault(why, []).append(name)

    @property
    def left_out_words(self) -> tuple[str, ...]:
        """The files that were not compared, in words such as `a.png, b.png (neither logs nor arrays)`."""
        return tuple(f"{some_of(names, 3)} ({why})" for why, names in self.left_out.items())


def compared_with(reference: Reference, run: RunDir, fault_at: float) -> Compared:
    """Compares the files that the undisturbed run has left in its working folder and that two undisturbed runs left
    equal.

    `fault_at`: the time of the fault, in seconds since 1970.
    """
    found = Compared([words_of_state(reference.state)])
    if reference.again is None:
        return found
    first, second = (RunDir(folder).code for folder in (reference.folder, reference.again))
    for name in _names(first, reference.began):
        if any(fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in reference.patterns):
            pass
        elif not name.endswith((*LOGS, *STATES)):
            found.leave_out(name, OTHER_KIND)
            continue
        elif (first / name).stat().st_size > LARGEST:
            found.leave_out(name, LARGE)
            continue
        else:
            _compare(first, second, run.code, name, found)
        if _written_at(run.code / name) < fault_at:
            found.leave_out(name, BEFORE)
    found.other += [f"{name} is new" for name in _new_logs(reference, first, second, run.code)]
    return found


def _new_logs(reference: Reference, first: Path, second: Path, got: Path) -> list[str]:
    """Returns logs that no undisturbed run has, but whose file name both undisturbed runs have in another folder.

    For example, a logger that begins a new log at each start writes `version_1/metrics.csv`.
    """
    usual, others = {*_names(first, reference.began)}, {*_names(second, reference.began)}
    known = {os.path.basename(name) for name in usual & others if name.endswith(LOGS)}
    there = _names(got, reference.began)
    return [name for name in there if name not in usual | others and os.path.basename(name) in known]


def words_of_state(state: EndState) -> str:
    """Returns an end state in words such as `last.pt: 18 values, 12 of them tensors`."""
    tensors = sum(leaf.kind == "tensor" for leaf in state.values.values())
    of_them = f", {tensors} of them tensors" if tensors else ""
    return f"{state.source}: {counted(len(state.values), 'value')}{of_them}"


def _names(folder: Path, since: float) -> Iterator[str]:
    """Yields the names of files in the folder that were written after `since`. Older files came with the program."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and path.stat().st_mtime >= since:
                yield str(path.relative_to(folder))


def _written_at(path: Path) -> float:
    """Returns the time of a file's last write, or infinity for a missing file, which is reported as missing."""
    return path.stat().st_mtime if path.is_file() else float("inf")


def _compare(first: Path, second: Path, got: Path, name: str, found: Compared) -> None:
    if not (second / name).is_file():
        found.leave_out(name, UNSTEADY)
        return
    try:
        (_of_log if name.endswith(LOGS) else _of_state)(first, second, got, name, found)
    except (OSError, CheckpointError):
        found.leave_out(name, UNREADABLE)


def _of_state(first: Path, second: Path, got: Path, name: str, found: Compared) -> None:
    expected = of_files(first, [name])
    if compare(expected, of_files(second, [name])):
        found.leave_out(name, UNSTEADY)
        return
    found.what.append(words_of_state(expected))
    if not (got / name).is_file():
        found.other.append(f"{name} is missing")
    elif differing := compare(expected, of_files(got, [name])):
        found.other.append(f"{name} differs in {counted(len(differing), 'value')}")


def _of_log(first: Path, second: Path, got: Path, name: str, found: Compared) -> None:
    """Compares the lines that both undisturbed runs have, as sets, because repeated lines are usual after a resume."""
    lines = _lines(first / name) & _lines(second / name)
    if not lines:
        found.leave_out(name, UNSTEADY)
        return
    found.what.append(f"{name}: {counted(len(lines), 'line')}")
    there = _lines(got / name) if (got / name).is_file() else set()
    if lost := len(lines - there):
        found.other.append(f"{name} lacks {counted(lost, 'line')}")


def _lines(path: Path) -> set[bytes]:
    return {*path.read_bytes().splitlines()}


def sentence_of(what: Sequence[str], left_out: Sequence[str]) -> str:
    """Returns `Compared: last.pt: 18 values; log.csv: 60 lines. Not compared: a.png (neither logs nor arrays).`"""
    said = f"Compared: {some_of(what, 3, ';')}."
    return f"{said} Not compared: {some_of(left_out, 3, ';')}." if left_out else said
