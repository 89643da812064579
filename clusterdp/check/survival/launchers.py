"""Finds a launcher that each rank would start: every rank would start a training of its own, or a step that waits for
the CPUs of the rank itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from clusterdp.check.finding import Finding
from clusterdp.check.program.command_words import LAUNCHER_MODULES, LAUNCHERS, PYTHON, program_of, without_wrappers
from clusterdp.check.program.shell_lines import commands_of
from clusterdp.check.subject import Subject
from clusterdp.plainfile import read_plain
from clusterdp.submission.render.script_spec import lines_of

COUNT = re.compile(r"--?(?:nproc[_-]per[_-]node|num[_-]processes|num_gpus|nprocs|np|n)(?:[= ](\S+))?")
# Options by which an agent of torchrun finds the other agents
MEETS_OTHERS = re.compile(r"--?(?:nnodes|rdzv[_-]\w+|node[_-]rank|machine_rank|num_machines|config_file)\b")
OF_SEVERAL_NODES = frozenset({"torchrun", "accelerate"})


def launcher_findings(subject: Subject) -> Iterator[Finding]:
    """Yields a finding for the first command that is itself a launcher of ranks."""
    for words in _commands(subject):
        name = launcher_of(words)
        if name == "srun":
            yield _of_srun(subject, words)
        elif name and _is_started_twice(subject, name, words):
            yield _of_launcher(subject, name, words)
        else:
            continue
        return


def launcher_of(words: Sequence[str]) -> str:
    """Returns the launcher that the words start, such as `srun`, `torchrun` or `accelerate`; empty if the words start a
    program."""
    words = without_wrappers(words)
    name = Path(words[0]).name if words else ""
    if PYTHON.fullmatch(name):
        module = next((after for word, after in pairwise(words) if word == "-m"), "")
        return ("accelerate" if "accelerate" in module else "torchrun") if module in LAUNCHER_MODULES else ""
    if name == "accelerate" and "launch" not in words:
        return ""
    return name if name in LAUNCHERS | {"srun", "mpiexec"} else ""


def _commands(subject: Subject) -> Iterator[Sequence[str]]:
    spec = subject.spec
    if spec.kind == "script":
        yield from (command.words for command in commands_of(lines_of(subject.config.script, "script")))
    elif spec.kind == "command":
        yield spec.command
        script = program_of(spec.command, spec.submit_dir)
        if script is not None and script.suffix in (".sh", ".bash"):
            try:
                text = read_plain(script).decode()
            except (OSError, ValueError):
                return
            yield from (command.words for command in commands_of(text))


def _of_srun(subject: Subject, words: Sequence[str]) -> Finding:
    kind = subject.spec.kind
    what = f"has an srun, and {kind}: is run by each rank, below an srun of its own: {shlex.join(words)[:60]}"
    why = f"each of {subject.ranks} ranks would start a step, which waits for CPUs that the ranks hold"
    return Finding("warning", kind, what, why, "Leave srun out: nodes and tasks stand in resources:.")


def _is_started_twice(subject: Subject, name: str, words: Sequence[str]) -> bool:
    """Returns whether each rank would start an agent of its own. One agent on each node, with options to find the other
    agents, is fine."""
    if subject.ranks == 1:
        return False
    if subject.spec.is_torchrun or subject.spec.ranks_per_node > 1:
        return True
    return name in OF_SEVERAL_NODES and not any(MEETS_OTHERS.match(word) for word in words)


def _of_launcher(subject: Subject, name: str, words: Sequence[str]) -> Finding:
    each, ranks, kind = _processes(subject, words), subject.ranks, subject.spec.kind
    by = f"{ranks} ranks" if not subject.spec.is_torchrun else f"{ranks} workers of a torchrun"
    what = f"{name} is started by each of {by}"
    why = f"{f'{ranks} x {each} = {ranks * each} processes' if each else 'they'} train as {ranks} runs, not as one"
    remedy = f"Leave it out: `{_without(words)}`, which each rank runs."
    if not subject.spec.is_torchrun:
        remedy += " Or, with launch.launcher: torchrun, one agent of torchrun a node starts it."
    return Finding("warning", kind, what, why, remedy)


def _processes(subject: Subject, words: Sequence[str]) -> int:
    """Returns the number of processes that one agent starts; 0 if the words do not contain the number."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if match := COUNT.fullmatch(word.replace("=", " ", 1)):
            said = match[1] or after
            return int(said) if said.isdecimal() else subject.gpus_per_node
    return 0


def _without(words: Sequence[str]) -> str:
    at = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    return f"python {shlex.join(words[at:])}"[:60] if at is not None else "python train.py"
