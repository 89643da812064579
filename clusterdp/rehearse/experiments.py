"""Experiments on a run that ended in a different state: new runs start from the files from which this run resumed,
first unchanged, then with other values in a part of the checkpoint. If a run with other values ends in the same state,
the program does not read this part.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.config import Config
from clusterdp.errors import CheckpointError
from clusterdp.rehearse.judge.after_fault import AfterFault
from clusterdp.rehearse.judge.lost_state import NOTHING, Shown
from clusterdp.rehearse.judge.reference import Reference
from clusterdp.rehearse.observe.file_versions import Version, files_at, read_versions
from clusterdp.rehearse.run_spec import RunResult
from clusterdp.rehearse.state import RESULTS, EndState, compare
from clusterdp.rehearse.state.files import ARRAYS, TORCH, read_pickled, read_safetensors
from clusterdp.rehearse.state.flatten import leaves_of
from clusterdp.rehearse.state.optimizers import optimizers_of
from clusterdp.rehearse.state.stored import Bytes, Stored, read_range
from clusterdp.rundir import RunDir
from clusterdp.submission.render.script_spec import lines_of
from clusterdp.wording import some_of

START = "-start"  # suffix of a run's name: the folder of the files from which the run starts
MOST = 5  # maximum number of altered parts, because each part costs a run
LONGEST_S = 60.0  # longest undisturbed run of a job for which experiments are made
MakeRun = Callable[[str, list[str]], RunResult]
FLOATS = ("float16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


@dataclass
class Experiments:
    """The experiments of a rehearsal, and their results so far."""

    config: Config
    reference: Reference
    is_read: dict[str, bool] = field(default_factory=dict)  # by part, whether it is read; valid for all drills
    alike: set[Path] = field(default_factory=set)  # drills' runs that ended like a plain start from the same files
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def are_possible(self) -> bool:
        """Whether experiments are possible: the checkpoints are the program's own, the runs deterministic and short
        enough."""
        facts = self.reference.facts
        return not facts.ours and self.reference.spread is None and facts.took_s <= LONGEST_S

    def shown(self, run: RunDir, after: AfterFault, make_run: MakeRun) -> Shown:
        """Returns which parts of the checkpoint are not read, or that a plain start ends in the same state, or NOTHING.

        `make_run`: a function that makes a run with this name and these additional overrides of the config.
        """
        parts = _parts(after)
        with self._lock:
            if any(name not in self.is_read for name in parts):
                self._try(run, after, parts, make_run)
        unread = [name for name in parts if self.is_read.get(name) is False]
        if not unread or not any(self.is_read.values()):  # if no part is read, the run resumed from other files
            alike = "a plain start from the same files ended in the same state: the resume makes the difference"
            return Shown(note=f"{alike}, not the fault") if run.path in self.alike else NOTHING
        named = some_of([_words(name, after) for name in unread], 3)
        source = after.resumed[0].version.name
        return Shown(
            f"{named} {'is' if len(unread) == 1 else 'are'} in {source}, and not read at a resume: a run that was "
            "started from the same files with other values there ended in the same state, bit for bit"
        )

    def _try(self, run: RunDir, after: AfterFault, parts: Mapping[str, Sequence[str]], make_run: MakeRun) -> None:
        """Makes the experiments on a drill's run, and records which parts are read.

        Records nothing if a plain start from the same files ends in another state than the drill's run. If no part with
        a difference is read, equal parts are altered too, to find out whether the file is read at all.
        """
        files = files_at(read_versions(run.path), after.began)
        expected = self._end(run)
        if expected is None or not _are_whole(files.values()):
            return
        plain = self._ended(_StartedFrom(run, "plain", files), make_run)
        if plain is None or compare(expected, plain):
            return
        self.alike.add(run.path)
        alike = {name: keys for name, keys in _parts(after, differing=False).items() if name not in parts}
        for name, keys in [*parts.items(), *reversed(alike.items())][:MOST]:
            if name in self.is_read or (name in alike and any(self.is_read.values())):
                continue
            start = _StartedFrom(run, f"other-{name}", files)
            if start.alter(keys):
                ended = self._ended(start, make_run)
                self.is_read[name] = ended is None or bool(compare(expected, ended))

    def _ended(self, start: _StartedFrom, make_run: MakeRun) -> EndState | None:
        """Makes a run that starts from these files, and returns its end state, or None if it has no end state."""
        lines = [*lines_of(self.config.launch.setup, "launch.setup"), start.copies_to]
        result = make_run(start.name, [f"launch.setup={json.dumps(lines)}"])
        return self._end(RunDir(Path(result.folder))) if result.state == "done" else None

    def _end(self, run: RunDir) -> EndState | None:
        with suppress(CheckpointError):
            return self.reference.state_of(run)
        return None


class _StartedFrom:
    """A folder with the files that a run starts from, beside the run of the drill. `files`: versions by file name."""

    def __init__(self, run: RunDir, word: str, files: Mapping[str, Version]):
        self.name = f"{run.path.name}-{re.sub(r'[^A-Za-z0-9_-]', '-', word)}"
        self._run = run.path.with_name(self.name)
        self._folder = run.path.with_name(f"{self.name}{START}")
        self._files = [self._folder / name for name in files]
        for path, version in zip(self._files, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(version.copy, path, follow_symlinks=False)

    @property
    def copies_to(self) -> str:
        """The line of launch.setup that copies these files into the working folder of the run."""
        return f"cp -a {shlex.quote(str(self._folder))}/. {shlex.quote(str(RunDir(self._run).code))}/"

    def alter(self, keys: Collection[str]) -> bool:
        """Gives these tensors other values in all files, and returns whether any tensor was changed."""
        altered = 0
        for path in self._files:
            if path.suffix in (*TORCH, *ARRAYS) and not path.is_symlink():
                with suppress(CheckpointError):
                    altered += alter(path, keys)
        return altered > 0


def _are_whole(versions: Collection[Version]) -> bool:
    """Whether each version has a copy, and no version is an absolute link, which leads out of the run."""
    return bool(versions) and all(
        each.copy and not (os.path.islink(each.copy) and os.path.isabs(os.readlink(each.copy))) for each in versions
    )


def _parts(after: AfterFault, differing: bool = True) -> Mapping[str, Sequence[str]]:
    """Returns the keys of the tensors from which the run resumed, by part (the key's first word), with the model last.

    `differing`: whether to return keys that differ in the first checkpoint with a difference, or equal keys. Scores are
    left out, because a program computes its scores again.
    """
    others = {each.key for each in after.first.differences} if after.first else set()
    found: dict[str, list[str]] = {}
    leaves = {key: leaf for save in after.resumed for key, leaf in save.state.values.items() if leaf.kind == "tensor"}
    tensors = {key: leaf for key, leaf in leaves.items() if leaf.part not in RESULTS}
    for key in sorted(tensors, key=lambda key: tensors[key].part == "model"):
        if (key in others) is differing:
            found.setdefault(key.partition(".")[0], []).append(key)
    return found


def _words(name: str, after: AfterFault) -> str:
    """Returns words for a part, such as `opt_d (the optimizer of dis.weight, dis.bias)`, or its keys if only some
    differ."""
    state = after.resumed[0].state.values
    optimizer = optimizers_of(state).get(f"{name}.")
    if optimizer:
        return optimizer.words
    keys = _parts(after)[name]
    whole = [key for key in state if key == name or key.startswith(f"{name}.")]
    return name if len(keys) == len(whole) else some_of(list(keys), 3)


def alter(path: Path, keys: Collection[str]) -> int:
    """Alters these tensors in a file of torch or safetensors, and returns how many tensors were altered. Tensors of
    types that numpy lacks stay as they are. Raises CheckpointError if the file cannot be read."""
    places: list[tuple[int, int]] = []

    def read(file: Path, start: int, size: int) -> Bytes:
        places.append((start, size))
        return read_range(file, start, size)

    if path.suffix == ".safetensors":
        leaves = leaves_of(read_safetensors(path, read), path.name)
    else:
        tree, plain = read_pickled(path, read)
        leaves = leaves_of(tree, path.name, "", plain)
    count = 0
    for key in keys:
        leaf = leaves.get(key)
        if leaf and leaf.stored and leaf.kind == "tensor" and leaf.dtype in (*FLOATS, *INTEGERS):
            places.clear()
            count += _write(path, leaf.stored, places)
    return count


def _write(path: Path, stored: Stored, places: list[tuple[int, int]]) -> bool:
    """Writes other values into a tensor that is one piece of its file.

    Returns False for any other tensor. Reading the tensor fills `places`.
    """
    data = stored.read()
    if len(places) != 1 or places[0][1] != data.nbytes:
        return False
    with path.open("r+b") as file:
        file.seek(places[0][0])
        file.write(_others(data, stored.dtype).tobytes())
    return True


def _others(data: Bytes, dtype: str) -> NDArray[Any]:
    """Returns values other than `data`: positive for positive ones, because an optimizer takes the root of a second
    moment."""
    values: NDArray[Any] = data.view(dtype)
    others: NDArray[Any] = values * 1.25 + 0.125 if dtype in FLOATS else values ^ np.array(1, dtype)
    return others.astype(dtype)
