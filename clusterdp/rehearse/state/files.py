"""of_files(): the end state of a run in the files that its program has left."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterdp.errors import CheckpointError, ConfigError
from clusterdp.plainfile import reading
from clusterdp.rehearse.state import array_files, text_files, torch_zip
from clusterdp.rehearse.state.end_state import EndState, Leaf
from clusterdp.rehearse.state.flatten import MALFORMED, leaves_of
from clusterdp.rehearse.state.volatile import without_volatile
from clusterdp.rundir import RunDir
from clusterdp.wording import some_of

TORCH = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".tar")
ARRAYS = (".safetensors", ".npy", ".npz")
JSON = (".json", ".jsonl", ".ndjson")
NEWEST, LOGS = "newest:", "logs:"


def of_files(folder: Path, patterns: Sequence[str], run: RunDir | None = None) -> EndState:
    """What the patterns (rehearse.compare) name, relative to the folder or absolute.

        out/ckpt.pt, out/*.json      files; of a folder all files in it that can be compared
        newest:runs/*/last.ckpt      of these files the one that was written last, whatever its name
        logs:val loss (\\S+)          the last match in rank 0's logs of `run`: its groups, by name if they have names

    Keys have the file and a colon in front, unless the one pattern is the path of one file. Raises CheckpointError
    where a file cannot be compared, ConfigError where a regular expression is none.
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
    """Raises ConfigError if one of them cannot name anything, whatever a run leaves."""
    for pattern in patterns:
        if pattern.startswith(LOGS):
            _expression(pattern)
        else:
            next(_files(Path(os.devnull), pattern), None)


def read_file(path: Path, name: str, prefix: str = "") -> dict[str, Leaf]:
    """The leaves of one file. Raises CheckpointError, which names it."""
    plain = None
    tree: Any
    if path.suffix == ".safetensors":
        tree = array_files.read_safetensors(path)
    elif path.suffix in (".npy", ".npz"):
        tree = array_files.read_numpy(path)
    elif path.suffix == ".json":
        tree = text_files.read_json(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        tree = text_files.read_json_lines(path)
    elif (path.suffix in TORCH and (path.suffix != ".bin" or looks_pickled(path))) or _begins(path) == torch_zip.ZIP:
        tree, plain = torch_zip.read(path)
    else:
        tree = text_files.read_text(path)
    try:
        return leaves_of(tree, name, prefix, plain)
    except MALFORMED as error:
        raise CheckpointError(f"{path}: it cannot be compared: {error}. Name another file.") from None


def looks_pickled(path: Path) -> bool:
    """Whether a .bin is torch's. Others are plain numbers, such as nanoGPT's tokens."""
    begin = _begins(path)
    if begin is None:
        return True  # reading it says why
    return begin == torch_zip.ZIP or (begin[:1] == b"\x80" and begin[1:2] <= b"\x05")


def _begins(path: Path) -> bytes | None:
    """Its first bytes."""
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
        raise ConfigError(f"rehearse.compare: {pattern!r} is no pattern of files: {error}. Write out/*.pt") from None
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
        try:
            text = attempt.rank_log(0).read_text("utf-8", "replace")
        except OSError:  # it ended before rank 0 had started
            continue
        for match in reversed([*expression.finditer(text)]):
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
