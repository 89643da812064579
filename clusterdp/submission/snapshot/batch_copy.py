"""RUN/batch: a copy of the batch program and its rules. Because of the copy, an upgrade of clusterdp has no effect on a
waiting job."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from clusterdp.rundir import write_durably
from clusterdp.submission.snapshot.copied_files import copy_files, find_earlier

PROGRAM = Path(__file__).resolve().parents[2] / "batch"
TOP = ("__main__.py", "setup.bash", "interface.bash", "environment.bash")


def write_batch(folder: Path, rules: dict[str, Any]) -> None:
    """Makes `folder` with read-only files. A file that is the same in an earlier run is a hard link to that run's file.
    An old `folder` may be replaced while its batch program runs, because the program has already read all its files."""
    earlier = find_earlier(folder.parent, folder.name)
    new, old = folder.with_name(f".{folder.name}.{os.getpid()}"), folder.with_name(f".{folder.name}.old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    modules = [path for path in sorted(PROGRAM.rglob("*.py")) if path.name not in TOP]
    files = [*modules, *_compiled(modules)]
    copy_files(PROGRAM.parent, new, {f"{path.relative_to(PROGRAM.parent)}": path.lstat() for path in files}, earlier)
    copy_files(PROGRAM, new, {name: (PROGRAM / name).lstat() for name in TOP}, earlier)
    write_durably(new / "rules.json", json.dumps(rules, indent=1) + "\n", mode=0o600)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _compiled(modules: Sequence[Path]) -> Iterator[Path]:
    """Yields the bytecode of this Python for the modules, because compiling them takes most of the time at the start of
    an attempt. Another version of Python ignores the bytecode, and so does Python if a module has changed."""
    for path in modules:
        cached = Path(cache_from_source(path))
        with suppress(OSError):
            if not cached.exists() or cached.stat().st_mtime_ns < path.stat().st_mtime_ns:
                py_compile.compile(str(path))
            yield cached
