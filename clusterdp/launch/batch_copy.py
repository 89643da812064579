"""RUN/batch: a copy of the batch program, which an upgrade does not change under a job that waits, and its rules."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from clusterdp.launch.copied_files import copy_files, find_earlier
from clusterdp.rundir import write_durably

PROGRAM = Path(__file__).resolve().parent.parent / "batch"
MAIN = "__main__.py"


def write_batch(folder: Path, rules: dict[str, Any]) -> None:
    """Makes `folder`, with read-only files: links to those of an earlier run where it has the same. A program that runs
    from there has read all of it."""
    earlier = find_earlier(folder.parent, folder.name)
    new, old = folder.with_name(f".{folder.name}.{os.getpid()}"), folder.with_name(f".{folder.name}.old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    modules = {f"batch/{path.name}": path.lstat() for path in sorted(PROGRAM.glob("*.py")) if path.name != MAIN}
    copy_files(PROGRAM.parent, new, modules, earlier)
    copy_files(PROGRAM, new, {MAIN: (PROGRAM / MAIN).lstat()}, earlier)
    write_durably(new / "rules.json", json.dumps(rules, indent=1) + "\n", mode=0o600)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
