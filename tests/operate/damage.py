"""What can become of a file of a run folder, and of the answer of a Slurm command. Each damage takes its own dice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[1A\x1b[31mred\x9b2J\x7f\x08\r\u202e"
VALUES: list[Any] = [
    None, True, -1, 0, 1e308, -1e308, 10**400, -(10**18), float("nan"), float("inf"), "", "²", "7", "--me", "7 8",
    "7\n8", "9" * 5000, "../../etc", "n[1-", ESCAPES, "Ä", "\ud800", "x" * 70_000, [], [1], {}, {"a": {"b": [None]}},
]  # fmt: skip
DEEP = b"[" * 100_000
JUNK = [
    b"", b"\n", b"\0" * 100, b"\xff\xfe\xe4\xf6", ESCAPES.encode(), ESCAPES.encode("latin-1", "replace"),
    b"9" * 5000, b"nan", b"1e999", DEEP, DEEP + b"]" * 100_000, b'{"a":' * 50_000, b"a: &a [*a]\n", b"- " * 5000,
    b"x: " + b"9" * 5000, b"<<: {a: 1}\n", b"null", b"[]", b"{}", b"7", "²\n".encode(), b"7|RUNNING\n",
    b"x" * 200_000, b"clusterdp: another failed: rank " + b"9" * 5000 + b": x\nTraceback (most recent call last)\n",
    b"srun: error: n1: task " + b"9" * 5000 + b": Killed\n",
]  # fmt: skip

Damage = Callable[[Path, Random], None]


def spoil_folder(run: Path, dice: Random) -> str:
    """Damages one thing below `run`; returns what, and how."""
    path = dice.choice([path for path in sorted(run.rglob("*")) if not path.is_symlink()])
    kinds = [*OF_ANY, *OF_FILES] if path.is_file() else [*OF_ANY]  # a pipe of an earlier damage has nothing to cut
    if path.suffix in (".jsonl", ".json") and path.is_file():
        kinds += [a_value] * 6
    damage = dice.choice(kinds)
    damage(path, dice)
    return f"{damage.__name__} for {path.relative_to(run)}"


def a_pipe(path: Path, dice: Random) -> None:
    _remove(path)
    os.mkfifo(path)


def a_folder(path: Path, dice: Random) -> None:
    _remove(path)
    path.mkdir()
    if dice.random() < 0.3:
        (path / "file").write_text("x")


def a_loop(path: Path, dice: Random) -> None:
    _remove(path)
    path.symlink_to(path.name)


def a_link_to_nowhere(path: Path, dice: Random) -> None:
    _remove(path)
    path.symlink_to("nowhere")


def a_device(path: Path, dice: Random) -> None:
    _remove(path)
    path.symlink_to(dice.choice(["/dev/zero", "/dev/full", "/dev/tty"]))


def a_file(path: Path, dice: Random) -> None:
    _remove(path)
    path.write_bytes(dice.choice(JUNK))


def nothing(path: Path, dice: Random) -> None:
    _remove(path)


def a_stranger(path: Path, dice: Random) -> None:
    """A file of an odd name beside it."""
    name = dice.choice(["²", "7.²", "٣.0", "rank-99999999999999999999.out", "\x1b[2J", "7.0-x.jsonl", "000²"])
    path.with_name(name).write_bytes(dice.choice(JUNK))


def cut_short(path: Path, dice: Random) -> None:
    os.truncate(path, dice.randrange(path.stat().st_size + 1))


def flipped_bytes(path: Path, dice: Random) -> None:
    data = bytearray(path.read_bytes() or b"\n")
    for _ in range(dice.choice([1, 3, 30])):
        data[dice.randrange(len(data))] = dice.randrange(256)
    path.write_bytes(data)


def more_bytes(path: Path, dice: Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(JUNK) + b"\n")
    path.write_bytes(b"".join(lines))


def a_value(path: Path, dice: Random) -> None:
    """Another value for one key of one record; JSON as it should be, otherwise."""
    try:
        lines = path.read_text().splitlines()
        at = dice.randrange(len(lines))
        record = json.loads(lines[at])
        record.keys()
    except (ValueError, AttributeError):  # it is damaged already, or the JSON has no lines
        more_bytes(path, dice)
        return
    record[dice.choice([*record, "new", ESCAPES])] = dice.choice(VALUES)
    lines[at] = json.dumps(record, ensure_ascii=dice.random() < 0.5)
    path.write_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogatepass"))


OF_ANY: list[Damage] = [a_pipe, a_folder, a_loop, a_link_to_nowhere, a_device, a_file, nothing, a_stranger]
OF_FILES: list[Damage] = [cut_short, flipped_bytes, more_bytes]


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def spoil_answer(answer: bytes, dice: Random) -> bytes:
    if dice.random() < 0.4:
        return dice.choice(JUNK)
    fields = answer.strip().split(b"|")
    odd = dice.choice([str(value).encode(errors="replace") for value in VALUES] + [b"\xe4", b"7_[1-3]", b"7+0", b"|"])
    fields[dice.randrange(len(fields))] = odd
    return b"|".join(fields) + dice.choice([b"\n", b""])
