"""The code that a run was made from: source.json and source.diff of its folder."""

from __future__ import annotations

from dataclasses import dataclass

from clusterdp.operate.diff import abbreviated, commit_of, source_record
from clusterdp.plainfile import reading
from clusterdp.rundir import RunDir

MOST = 200_000  # bytes of a difference that are shown
NAMED = ("torch", "numpy", "clusterdp")


@dataclass(frozen=True)
class Source:
    """facts: (what, value). Empty for a run of an older version, which has no record."""

    facts: list[tuple[str, str]]
    untracked: list[str]
    diff: str
    cut: bool  # there is more of the difference


def source_of(run: RunDir) -> Source:
    record = source_record(run)
    told = record.get("git")
    git = told if isinstance(told, dict) else {}
    facts = [("commit", abbreviated(commit_of(record)) or "not in a git repository")] if record else []
    if git.get("branch"):
        facts.append(("branch", str(git["branch"])))
    facts += [(key, str(record[key])) for key in ("user", "host", "dir") if record.get(key)]
    if record.get("python_version"):
        facts.append(("python", str(record["python_version"])))
    packages = record.get("packages")
    if isinstance(packages, dict):
        facts += [(name, str(packages[name])) for name in NAMED if name in packages]
    untracked = git.get("untracked")
    try:
        with reading(run.source_diff) as file:
            diff = file.read(MOST + 1)
    except OSError:
        diff = b""
    names = [str(name) for name in untracked] if isinstance(untracked, list) else []
    return Source(facts, names, diff[:MOST].decode(errors="replace"), len(diff) > MOST)
