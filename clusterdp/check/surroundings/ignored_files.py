"""Yields findings for files that the job needs, but that are not in the snapshot: the program's own files, and files
that the command names by a relative path."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from clusterdp.check.finding import Finding
from clusterdp.check.program.command_words import program_of
from clusterdp.check.subject import Subject
from clusterdp.submission.plan import elsewhere
from clusterdp.submission.render.script_spec import lines_of
from clusterdp.submission.snapshot.code_snapshot import git_lists, is_clutter, is_run

NOT_FOUND = "the job runs in the snapshot and does not find it"
WRITTEN = re.compile(r"out|log|save|dest|result|write|export|record|ckpt|checkpoint", re.I)  # output options


def ignored_findings(subject: Subject) -> Iterator[Finding]:
    if not subject.config.snapshot.enabled:
        return
    git_lists(subject.spec.submit_dir, "--", ".gitignore")  # raises ConfigError if git fails, as submit does
    yield from _of_program(subject)
    yield from _of_words(subject)


def _of_program(subject: Subject) -> Iterator[Finding]:
    """Yields findings for the program's file, and for the modules in the folder that it imports."""
    folder, program = subject.spec.submit_dir, subject.program
    if program is None or _runs_in_place(subject):
        return
    files = [*program.files, *(place.file for place in program.unparsed), *_scripts(subject)]
    below = [str(file.relative_to(folder)) for file in files if file.is_relative_to(folder)]
    for name in _not_in_snapshot(folder, _unlinked(subject, below)):
        is_run = folder / name not in program.files[1:] and subject.spec.kind != "entry"
        config, by = subject.config, "is run" if is_run else "is imported"
        doubtful = folder / name in program.optional or (config.launch.setup if is_run else elsewhere(config))
        what = f"{name} {by}, and is not in the snapshot of the code: {_reason(folder, name)}"
        why = "the job runs in the snapshot: " + ("can't open file" if is_run else "no module of that name")
        yield Finding("warning" if doubtful else "error", "snapshot.link", what, why, _remedy(name))


def _runs_in_place(subject: Subject) -> bool:
    """Returns whether the command names the program by an absolute path: such a program runs outside the snapshot, with
    the modules beside its file."""
    spec = subject.spec
    words = spec.command if spec.kind == "command" else lines_of(spec.config.script, "script").split()
    return any(word.strip("'\"").startswith(str(spec.submit_dir)) for word in words)


def _scripts(subject: Subject) -> list[Path]:
    spec = subject.spec
    file = program_of(spec.command, spec.submit_dir) if spec.kind == "command" else None
    return [file] if file else []


def _of_words(subject: Subject) -> Iterator[Finding]:
    """Yields findings for input files that the command names, such as configs and lists of data."""
    spec = subject.spec
    if spec.kind != "command":
        return
    names, before = [], ""
    for word in spec.command[1:]:
        option, _, value = word.rpartition("=")
        asked_for = option or (before if before.startswith("-") else "")
        name, before = os.path.normpath(value), word
        is_file = not name.startswith(("/", "..")) and "\0" not in name and os.path.isfile(spec.submit_dir / name)
        if is_file and not WRITTEN.search(asked_for) and not name.endswith((".py", ".sh", ".bash")):
            names.append(name)
    for name in _not_in_snapshot(spec.submit_dir, _unlinked(subject, names)):
        what = f"{name} stands in the command, and is not in the snapshot: {_reason(spec.submit_dir, name)}"
        yield Finding("warning", "snapshot.link", what, NOT_FOUND, _remedy(name))


def _unlinked(subject: Subject, names: Sequence[str]) -> list[str]:
    linked = {link.rstrip("/") for link in subject.config.snapshot.link}
    return [name for name in dict.fromkeys(names) if not {name, *map(str, PurePath(name).parents)} & linked]


def _remedy(name: str) -> str:
    return f"snapshot: {{link: [{name}]}}"


def _not_in_snapshot(folder: Path, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    command = ["git", "-C", str(folder), "check-ignore", "-z", "--stdin"]
    try:
        done = subprocess.run(command, input=b"\0".join(map(os.fsencode, names)), capture_output=True, check=False)
    except FileNotFoundError:
        return [name for name in names if _is_excluded(folder, name)]
    if done.returncode > 1:  # outside of a git work tree
        return [name for name in names if _is_excluded(folder, name)]
    ignored = {os.fsdecode(name) for name in done.stdout.split(b"\0")}
    return [name for name in names if name in ignored or _in_a_run(folder, name)]


def _is_excluded(folder: Path, name: str) -> bool:
    """Returns whether a snapshot of a folder that is not a git work tree leaves the file out."""
    folders = [folder / above for above in PurePath(name).parents if str(above) != "."]
    folders += [folder / name] if (folder / name).is_dir() else []
    return any(is_clutter(each) for each in folders) or _in_a_run(folder, name)


def _in_a_run(folder: Path, name: str) -> bool:
    return any(is_run(folder / above) for above in (name, *map(str, PurePath(name).parents)) if above != ".")


def _reason(folder: Path, name: str) -> str:
    return "it is of a run" if _in_a_run(folder, name) else "it is ignored or hidden"
