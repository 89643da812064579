"""of_files(): the end state of a run in the files that its program has left."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clusterdp.batch.files.rank_logs import text_of
from clusterdp.errors import CheckpointError, ConfigError
from clusterdp.plainfile import read_plain, reading
from clusterdp.rehearse.state.end_state import EndState, Leaf
from clusterdp.rehearse.state.flatten import MALFORMED, leaves_of, without_volatile
from clusterdp.rehearse.state.stored import mapped, of_array, unreadable
from clusterdp.rundir import RunDir
from clusterdp.wording import some_of

TORCH = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".tar")
SAFETENSORS = ".safetensors"
ARRAYS = (SAFETENSORS, ".npy", ".npz")
JSON = (".json", ".jsonl", ".ndjson")
NEWEST, LOGS = "newest:", "logs:"
_COUNTERS = ("global_step", "step", "iteration", "iter", "iter_num", "epoch")
ZIP = b"PK\x03\x04"


def of_files(folder: Path, patterns: Sequence[str], run: RunDir | None = None) -> EndState:
    """Returns the end state in the files that the patterns (rehearse.compare) name, relative to the folder or absolute.

        out/ckpt.pt, out/*.json      files; a folder means all files in it that can be compared
        newest:runs/*/last.ckpt      the one of these files that was written last
        logs:val loss (\\S+)          the last match in rank 0's logs of `run`: its groups, by name if they have names

    Keys begin with the file and a colon, unless the only pattern is the path of one file. Raises CheckpointError if a
    file cannot be compared, ConfigError if a regular expression is not valid.
    """
    found: dict[str, Leaf] = {}
    sources: list[str] = []
    unmatched: list[str] = []
    for pattern in patterns:
        before = len(sources)
        if pattern.startswith(LOGS):
            leaves = _of_logs(pattern, run)
            sources += [pattern] if leaves else []
            found |= leaves
        for path in [] if pattern.startswith(LOGS) else _files(folder, pattern):
            name = _named(path, folder)
            alone = len(patterns) == 1 and name == pattern
            shown = pattern if pattern.startswith(NEWEST) else without_volatile(name)
            found |= read_file(path, name, "" if alone else f"{shown}:")
            sources.append(name)
        if len(sources) == before:
            unmatched.append(pattern)
    return EndState(found, some_of(sources, 3) or "no file", tuple(unmatched))


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises ConfigError if a pattern of rehearse.compare is not valid."""
    for pattern in patterns:
        if pattern.startswith(LOGS):
            _expression(pattern)
        else:
            next(_files(Path(os.devnull), pattern), None)


def read_file(path: Path, name: str, prefix: str = "") -> dict[str, Leaf]:
    """Returns the leaves of one file. Raises CheckpointError, with the file's path, if the file cannot be compared."""
    plain = None
    tree: Any
    if path.suffix in (".npy", ".npz"):
        tree = read_numpy(path)
    elif path.suffix == ".json":
        tree = read_json(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        tree = read_json_lines(path)
    elif _begins(path) == ZIP or (
        path.suffix in (*TORCH, SAFETENSORS) and (path.suffix != ".bin" or looks_pickled(path))
    ):
        # Imported here, because loading torch takes seconds, and other files are read without it.
        from clusterdp.rehearse.state.tensor_files import read_tensors

        tree, plain = read_tensors(path)
    else:
        tree = read_text(path)
    try:
        return leaves_of(tree, name, prefix, plain)
    except MALFORMED as error:
        raise CheckpointError(f"{path}: it cannot be compared: {error}. Name another file.") from None


def looks_pickled(path: Path) -> bool:
    """Whether torch.save() wrote this .bin file. Other .bin files are plain numbers, such as nanoGPT's tokens."""
    begin = _begins(path)
    if begin is None:
        return True  # True, because reading the file then raises the reason
    return begin == ZIP or (begin[:1] == b"\x80" and begin[1:2] <= b"\x05")


def _begins(path: Path) -> bytes | None:
    """Returns the first four bytes of a file, or None if the file cannot be read."""
    try:
        with reading(path) as file:
            return file.read(4)
    except OSError:
        return None


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    words = Path(pattern.removeprefix(NEWEST)).expanduser()
    base = Path(words.anchor) if words.is_absolute() else folder
    parts = words.relative_to(base) if words.is_absolute() else words
    try:
        paths = sorted(base.glob(str(parts)))
    except (ValueError, NotImplementedError, IndexError) as error:
        raise ConfigError(f"rehearse.compare: {pattern!r} is not a pattern of files: {error}. Write out/*.pt") from None
    files = [file for path in paths for file in (_within(path) if path.is_dir() else [path])]
    if pattern.startswith(NEWEST):
        files = sorted(files, key=lambda file: file.stat().st_mtime_ns)[-1:]
    yield from files


def _within(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in (*TORCH, *ARRAYS, *JSON) and file.is_file())


def _named(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _of_logs(pattern: str, run: RunDir | None) -> dict[str, Leaf]:
    expression = _expression(pattern)
    for attempt in reversed(run.attempts() if run else []):
        for match in reversed([*expression.finditer(text_of(str(attempt.logs), 0))]):
            if expression.groups < 2 and not expression.groupindex:
                return leaves_of(_number(match[expression.groups]), "metrics", pattern)
            words = match.groupdict() or {str(i): word for i, word in enumerate(match.groups(), 1)}
            return leaves_of({name: _number(word) for name, word in words.items()}, "metrics", LOGS)
    return {}


def _expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.removeprefix(LOGS), re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"rehearse.compare: {pattern!r}: {error}. Write a regular expression of Python.") from None


def _number(word: str | None) -> int | float | str | None:
    try:
        return None if word is None else float(word)
    except ValueError:
        return word


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file. Raises CheckpointError, with the file's path, if the content is not JSON."""
    try:
        return json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: it is not JSON: {error}. Save it again, or compare another file.") from None


def read_json_lines(path: Path) -> dict[str, Any]:
    """Returns the last record of each step in JSON lines, because an interrupted run writes repeated steps twice.

    A line that a kill has cut is skipped. Records without a step are numbered. Raises CheckpointError if no line is
    JSON.
    """
    found: dict[str, Any] = {}
    lines = _bytes(path).decode("utf-8", "replace").splitlines()
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        counter = next((name for name in _COUNTERS if isinstance(record, dict) and name in record), None)
        if counter is None:
            found[str(len(found))] = record
        else:
            known = found.setdefault(f"{counter} {record[counter]}", {})
            known |= {name: value for name, value in record.items() if name != counter}
    if lines and not found:
        raise CheckpointError(f"{path}: none of its lines is JSON. Save it again, or compare another file.")
    return found


def read_text(path: Path) -> Any:
    """Returns the lines of a text file by number. If the file is not text, returns all bytes as one value. Raises
    CheckpointError if the file cannot be read."""
    data = _bytes(path)
    try:
        if b"\0" in data:
            return data
        return {f"line {i}": line for i, line in enumerate(data.decode().splitlines(), 1)}
    except UnicodeDecodeError:
        return data


def _bytes(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise unreadable(path, error) from None


def read_numpy(path: Path) -> Any:
    """Returns the array of a .npy file as a Stored, or the arrays of a .npz file by name.

    Raises CheckpointError, with the file's path, if the file is damaged.
    """
    try:
        with reading(path) as file:
            if path.suffix == ".npz":
                arrays = np.load(file, allow_pickle=False)
                return {name: of_array(arrays[name]) for name in arrays}
        return of_array(np.load(path, mmap_mode="r", allow_pickle=False), mapped(path))
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # damaged bytes can make numpy and zlib raise any exception
        raise CheckpointError(f"{path}: no file of numpy, or a damaged one: {error}. Save it again.") from None
