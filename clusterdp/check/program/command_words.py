"""program_of(): finds the file that a command runs, such as `python x.py`, `python -m pkg.mod`, `torchrun x.py`, `bash
x.sh`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "fabric", "lightning", "mpirun"}
)
LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
TAKE_A_WORD = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of python that take the next word as a value
# Commands that run the words after them, and the pattern of the options in between
WRAPPERS = frozenset("exec env nohup time timeout nice ionice numactl setsid stdbuf taskset chrt".split())
OF_A_WRAPPER = re.compile(r"-.*|[\d.,:-]+[smhd]?|\w+=.*", re.DOTALL)


def without_wrappers(words: Sequence[str]) -> Sequence[str]:
    """Returns the words without leading commands such as nohup: `srun x` for `timeout 60 srun x`."""
    while words and Path(words[0]).name in WRAPPERS:
        words = words[1:]
        while words and OF_A_WRAPPER.fullmatch(words[0]):
            words = words[1:]
    return words


def missing_program(words: Sequence[str], folder: Path) -> str:
    """Returns the relative name of the Python file or shell script that these words run, if the file does not exist.
    Empty if the file exists, or if the name of the file is not found."""
    words = without_wrappers(words)
    name = Path(words[0]).name if words else ""
    for word in words[1:] if name in SHELLS or PYTHON.fullmatch(name) else words:
        if word in TAKE_A_WORD or re.fullmatch(r"-\w*[cm]", word):
            return ""
        if not word.startswith("-"):
            is_relative = re.fullmatch(r"[^/~\s]\S*\.(?:py|sh|bash)", word)
            return word if is_relative and not os.path.exists(folder / word) else ""
    return ""


def program_of(words: Sequence[str], folder: Path) -> Path | None:
    """Returns the Python file or shell script that these words run, if it exists in the folder or at the given path."""
    for at, word in enumerate(words):
        name = Path(word).name
        rest = words[at + 1 :]
        if PYTHON.fullmatch(name):
            return _of_python(rest, folder)
        if name in LAUNCHERS:
            return _of_launcher(rest, folder)
        if name in SHELLS:
            return _of_shell(rest, folder)
        if word.endswith((".py", ".sh", ".bash")) and (found := _file(word, folder)):
            return found
    return None


def _of_python(words: Sequence[str], folder: Path) -> Path | None:
    at = 0
    while at < len(words):
        word = words[at]
        if word == "-m":
            module, rest = "".join(words[at + 1 : at + 2]), words[at + 2 :]
            return _of_launcher(rest, folder) if module in LAUNCHER_MODULES else module_file(module, [folder], True)
        if word.startswith("-c"):
            return None
        if not word.startswith("-"):
            return _file(word, folder) or _main_of(word, folder)
        at += 2 if word in TAKE_A_WORD else 1
    return None


def _main_of(word: str, folder: Path) -> Path | None:
    return _file(f"{word}/__main__.py", folder)


def _of_launcher(words: Sequence[str], folder: Path) -> Path | None:
    """Returns the first word that names an existing Python file. Options are not parsed, because a launcher has many,
    some with values."""
    for at, word in enumerate(words):
        if word in ("-m", "--module") and (found := module_file("".join(words[at + 1 : at + 2]), [folder], True)):
            return found
        if PYTHON.fullmatch(Path(word).name):
            return _of_python(words[at + 1 :], folder)
        if word.endswith(".py") and (found := _file(word, folder)):
            return found
    return None


def _of_shell(words: Sequence[str], folder: Path) -> Path | None:
    first = next((word for word in words if not word.startswith("-")), None)
    with_text = any(re.fullmatch(r"-[a-z]*c", word) for word in words[: words.index(first)] if first)
    return _file(first, folder) if first and not with_text else None


def _file(word: str, folder: Path) -> Path | None:
    path = folder / word
    return path if os.path.isfile(path) else None  # isfile() is False also for a name that is too long


def module_file(module: str, roots: Sequence[Path], as_program: bool = False) -> Path | None:
    """Returns the file of a module such as `pkg.mod` below one of the folders. With `as_program`, the file that `python
    -m` runs."""
    if not re.fullmatch(r"\w+(\.\w+)*", module):
        return None
    for root in roots:
        base = root.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / ("__main__.py" if as_program else "__init__.py")):
            if os.path.isfile(path):
                return path
    return None
