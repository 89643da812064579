"""Files that the program opens by a relative name, that are here, and that the snapshot will not have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from clusterdp.check.finding import Finding
from clusterdp.check.program import PathUse
from clusterdp.check.subject import Subject
from clusterdp.launch.excluded_folders import is_clutter, is_run


def ignored_findings(subject: Subject) -> Iterator[Finding]:
    config, program, folder = subject.config, subject.program, subject.spec.submit_dir
    if program is None or not config.snapshot.enabled:
        return
    linked = {link.rstrip("/") for link in config.snapshot.link}
    written = [use for use in program.opened if use.written]
    uses: dict[str, PathUse] = {}
    for use in program.opened:
        name = _name(use)
        above = {name, *map(str, PurePath(name).parents)}
        made = any(_is_made(name, each) for each in written)
        there = (folder / name).is_file() if use.named else (folder / name).exists()
        if name and there and not use.written and not made and not above & linked:
            uses.setdefault(name, use)
    for name in _not_in_snapshot(folder, list(uses)):
        use = uses[name]
        what = f"{name} is opened, and is not in the snapshot of the code: {_reason(folder, name)}"
        why = "the job runs in the snapshot and does not find it"
        remedy = f"snapshot: {{link: [{PurePath(name).parts[0] if not use.whole else name}]}}"
        yield Finding("warning", "snapshot.link", what, why, remedy, subject.where(use))


def _is_made(name: str, use: PathUse) -> bool:
    """Whether the program itself makes the file, or one below that folder, by this use."""
    return f"{use.path}/".startswith(f"{name}/") or (not use.whole and name.startswith(use.path))


def _name(use: PathUse) -> str:
    """Relative, and as much as names a file or folder; empty for others."""
    name = use.path if use.whole else use.path.rpartition("/")[0]
    name = os.path.normpath(name) if name else ""
    return "" if name.startswith(("/", "~", "..")) or name == "." or "\0" in name else name


def _not_in_snapshot(folder: Path, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    command = ["git", "-C", str(folder), "check-ignore", "-z", "--stdin"]
    try:
        done = subprocess.run(command, input=b"\0".join(map(os.fsencode, names)), capture_output=True, check=False)
    except FileNotFoundError:
        return [name for name in names if _is_excluded(folder, name)]
    if done.returncode > 1:  # no work tree
        return [name for name in names if _is_excluded(folder, name)]
    ignored = {os.fsdecode(name) for name in done.stdout.split(b"\0")}
    return [name for name in names if name in ignored or _in_a_run(folder, name)]


def _is_excluded(folder: Path, name: str) -> bool:
    """By a snapshot of what is no git work tree."""
    folders = [folder / above for above in PurePath(name).parents if str(above) != "."]
    folders += [folder / name] if (folder / name).is_dir() else []
    return any(is_clutter(each) for each in folders) or _in_a_run(folder, name)


def _in_a_run(folder: Path, name: str) -> bool:
    return any(is_run(folder / above) for above in (name, *map(str, PurePath(name).parents)) if above != ".")


def _reason(folder: Path, name: str) -> str:
    return "it is of a run" if _in_a_run(folder, name) else "it is ignored or hidden"
