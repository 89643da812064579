"""look_at: the facts of the program that a command runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clusterdp.check.program.command_words import program_of
from clusterdp.check.program.fixed_facts import add_fixed_facts
from clusterdp.check.program.opened_paths import add_opened_paths
from clusterdp.check.program.program_text import Place, ProgramText, ShellCall
from clusterdp.check.program.rank_facts import add_rank_facts
from clusterdp.check.program.save_facts import add_save_facts
from clusterdp.check.program.shell_lines import commands_of, fixed_ports, has_trap
from clusterdp.check.program.signal_facts import add_signal_facts
from clusterdp.check.program.sources import TooMuch, sources_from
from clusterdp.plainfile import read_plain

MOST_SCRIPTS = 3  # that call one another
GIVES_GPUS = re.compile(r"CUDA_VISIBLE_DEVICES|--gpu-bind|--gpus-per-task")  # of its own to each rank
ENDS = frozenset({"exit", "fi", "esac", "}"})  # of a branch; not of a loop


def look_at(words: Sequence[str], folder: Path) -> ProgramText | None:
    """What is written in the Python files that these words run, in `folder`. None if no such file is found: another
    program, or one that is installed. Through shell scripts, the files of all their commands together."""
    file = program_of(words, folder)
    return None if file is None else _look_at_any(file, folder, MOST_SCRIPTS)


def look_at_script(text: str, folder: Path, file: Path, before: int = 0) -> ProgramText | None:
    """The same of `script:`, whose shell lives on at a signal. `file`: where the lines
    stand, below `before` others."""
    return _look_at_shell("\n" * before + text, folder, file, MOST_SCRIPTS, traps=True)


def look_at_file(file: Path, folder: Path) -> ProgramText:
    """The same of a Python file, and of those of the folder that it imports."""
    sources = sources_from(file, folder)
    text = ProgramText([source.file for source in sources.each], complete=sources.complete, libraries=sources.libraries)
    text.optional |= {*text.files} - sources.needed
    text.unparsed += sources.unparsed
    for add_facts in (add_rank_facts, add_signal_facts, add_save_facts, add_fixed_facts, add_opened_paths):
        try:
            add_facts(text, sources)
        # An expression of a thousand terms, functions that call one another as deep, a number of thousands of digits.
        except (RecursionError, TooMuch, ValueError):
            text.complete = False
    return _each_once(text)


def _look_at_any(file: Path, folder: Path, hops: int) -> ProgramText | None:
    if file.suffix == ".py":
        return look_at_file(file, folder)
    try:
        data = read_plain(file).decode()
    except (OSError, ValueError):
        return None
    if data.startswith("#!") and "python" in data.splitlines()[0]:
        return look_at_file(file, folder)
    return _look_at_shell(data, folder, file, hops)


def _look_at_shell(text: str, folder: Path, file: Path, hops: int, traps: bool = False) -> ProgramText | None:
    found, shells = [], []
    traps = traps or has_trap(text)
    commands = [*commands_of(text)]
    for at, command in enumerate(commands):
        rest = commands[at + 1 :]
        program = program_of(command.words, folder) if hops else None
        each = _look_at_any(program, folder, hops - 1) if program else None
        if each is None:
            continue
        found.append(each)
        # What comes before an exec prepares, and is short.
        if not traps and "exec" not in [command.words[0], *(later.words[0] for later in rest)]:
            is_last = not command.in_background and all(later.words[0] in ENDS for later in rest)
            shells.append(ShellCall(file, command.line, command.text, is_last))
    if not found:
        return None
    ports = [Place(file, line, words) for line, words in fixed_ports(text)]
    whole = ProgramText(fixed_ports=ports, shells=shells)
    for each in found:
        _add(whole, each)
    if GIVES_GPUS.search(text):
        whole.fixed_devices, whole.first_gpus = [], []
    return _each_once(whole)


def _add(whole: ProgramText, other: ProgramText) -> None:
    whole.complete &= other.complete
    whole.copies_files |= other.copies_files
    whole.libraries |= other.libraries
    whole.optional |= other.optional
    for name, places in other.handled.items():
        whole.handled.setdefault(name, []).extend(places)
    for name, value in vars(other).items():
        if isinstance(value, list):
            getattr(whole, name).extend(value)


def _each_once(text: ProgramText) -> ProgramText:
    """In the order of the program, each place once."""
    for name, value in vars(text).items():
        if isinstance(value, list):
            setattr(text, name, list(dict.fromkeys(value)))
    text.handled = {name: list(dict.fromkeys(places)) for name, places in text.handled.items()}
    return text
