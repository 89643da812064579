"""The source of a run: the commit and uncommitted changes, the installed packages, the user and the host.

The files are `source.json` and `source.diff` of the run folder, for people and for `clusterdp diff`. No attempt reads
these files."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterdp import __version__
from clusterdp.rundir import RunDir, write_durably
from clusterdp.submission.render.script_spec import ScriptSpec
from clusterdp.submission.snapshot.sent_project import sent_project

GIT_TIMEOUT_S = 10.0  # git takes longer for a work tree of a million files
MOST_DIFF = 10_000_000  # bytes
PACKAGE = re.compile(r"(.+?)-([^-]+)\.(?:dist-info|egg-info)")


def write_record(run: RunDir, spec: ScriptSpec) -> None:
    sent = sent_project()
    git, diff = (sent.git, sent.diff) if sent else git_record(spec.submit_dir)
    record = {
        "clusterdp": __version__,
        "time": time.time(),
        "user": _user(),
        "host": socket.gethostname(),
        "dir": str(spec.submit_dir),
        "python": spec.python,
        "git": git,
    }
    if spec.python == sys.executable and not spec.config.launch.container.image:  # the job has the same packages
        record |= {"python_version": platform.python_version(), "packages": installed_packages()}
    write_durably(run.source, json.dumps(record, indent=1) + "\n", mode=0o600)
    if diff:
        write_durably(run.source_diff, diff, mode=0o600)


def copy_record(old: RunDir, new: RunDir) -> None:
    """Copies the source record of an earlier run to a run that repeats it with the same code."""
    for name in ("source", "source_diff"):
        with suppress(OSError):
            write_durably(getattr(new, name), getattr(old, name).read_bytes(), mode=0o600)


def installed_packages() -> dict[str, str]:
    """Returns the distributions on this interpreter's path. The names of their folders are used, because reading the
    metadata of each distribution takes ten times as long."""
    found: dict[str, str] = {}
    for folder in reversed(sys.path):  # the first of two versions on the path counts
        with suppress(OSError):
            matches = map(PACKAGE.fullmatch, os.listdir(folder or "."))
            found |= {match[1].lower().replace("_", "-"): match[2] for match in matches if match}
    return dict(sorted(found.items()))


def git_record(source: Path) -> tuple[dict[str, Any] | None, bytes]:
    """Returns (commit, branch, whether files have uncommitted changes), and the changes as a diff. The remote is left
    out, because its URL may contain a password."""
    head = _call_git(source, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if head is None or len(head.split()) != 2:
        return None, b""
    commit, branch = head.decode(errors="replace").split()
    about: dict[str, Any] = {"commit": commit, "branch": None if branch == "HEAD" else branch}
    changed = _call_git(source, "status", "--porcelain", "-z", "--", ".")
    if not changed:
        return about | {"dirty": None if changed is None else False}, b""
    untracked = [os.fsdecode(each[3:]) for each in changed.split(b"\0") if each.startswith(b"?? ")]
    diff = _call_git(source, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--", ".") or b""
    return about | {"dirty": True, "untracked": untracked[:100]}, diff[:MOST_DIFF]


def _call_git(source: Path, *words: str) -> bytes | None:
    """Returns the output of git; None if git fails or takes too long."""
    git = ["git", "--no-optional-locks", "-C", str(source), *words]
    try:
        done = subprocess.run(git, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for the user id
        return None
