"""`clusterdp diff`: the differences between two runs, as found in their run folders. Slurm is not asked."""

from __future__ import annotations

import filecmp
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from clusterdp import config as config_module
from clusterdp.errors import RunError
from clusterdp.operate.output.formatting import Colour, number, shown_path
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir
from clusterdp.wording import counted, some_of, table

OWN = frozenset({"run_dir", "restart.from_step"})  # config keys that are no difference between two trainings
WIDEST = 40  # longer values are cut when printed


@dataclass(frozen=True)
class RunDifference:
    """The differences between two runs. Each pair has the values of the first and the second run; None if a run lacks
    the key."""

    config: dict[str, tuple[Any, Any]]
    commit: tuple[str | None, str | None]  # ends in `+` if files had uncommitted changes
    changed: list[str]  # files of the source code that differ
    only: tuple[list[str], list[str]]  # source files that only the first, or only the second run has
    packages: dict[str, tuple[Any, Any]]
    ended: dict[str, tuple[Any, Any]]  # keys: state, step and the last metrics


def show_diff(first: RunDir, second: RunDir, out: TextIO, as_json: bool = False) -> None:
    histories = read_history(first), read_history(second)
    found = difference(*histories)
    if as_json:
        json.dump({"runs": [str(first.path), str(second.path)], **asdict(found)}, out, indent=2)
        out.write("\n")
    else:
        out.write("\n".join(as_text(histories, found, Colour(out))) + "\n")


def difference(first: RunHistory, second: RunHistory) -> RunDifference:
    runs = first.run, second.run
    records = [source_record(run) for run in runs]
    changed, only = _code(*runs)
    packages = [record.get("packages") or {} for record in records]
    return RunDifference(
        config={k: v for k, v in _differing(*map(config_of, runs)).items() if k not in OWN},
        commit=(commit_of(records[0]), commit_of(records[1])),
        changed=changed,
        only=only,
        packages=_differing(*packages) if all(packages) else {},  # {} if one run did not record its packages
        ended=_differing(*map(end_of, (first, second))),
    )


def as_text(histories: tuple[RunHistory, RunHistory], found: RunDifference, colour: Colour) -> list[str]:
    rows = [("", *(shown_path(history.run.path) for history in histories))]
    for title, values in (("config", found.config), ("packages", found.packages), ("ended", found.ended)):
        if values:
            rows.append((title, "", ""))
            rows += [(f"  {key}", _short(a), _short(b)) for key, (a, b) in values.items()]
    if found.commit[0] != found.commit[1]:
        rows.append(("commit", *(_short(abbreviated(commit)) for commit in found.commit)))
    lines = table(rows)
    lines = [
        lines[0].rstrip(),
        *(colour("bold", line) if line in ("config", "packages", "ended") else line for line in lines[1:]),
    ]
    names = [*found.changed, *found.only[0], *found.only[1]]
    if names:
        lines += ["", f"{colour('bold', 'code')}  {counted(len(names), 'file')}: {some_of(sorted(names), 6)}"]
        where = " ".join(shown_path(history.run.code) for history in histories)
        lines.append(f"  all of it: diff -ru {where}")
    if len(rows) == 1 and not names:
        lines = ["The two runs do not differ in config, code, packages, state and last metrics."]
    return lines


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*first, *second])
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def config_of(run: RunDir) -> dict[str, Any]:
    """Returns the run's config as one dictionary with dotted keys. Raises RunError if config.yaml cannot be read."""
    try:
        return dict(_flat(config_module.read_resolved(run.config)))
    except OSError as error:
        raise RunError(f"{run.config}: cannot be read: {error.strerror}. Name another run.") from None


def _flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        found += _flat(value, f"{above}{key}.") if isinstance(value, dict) and value else [(f"{above}{key}", value)]
    return found


def source_record(run: RunDir) -> dict[str, Any]:
    try:
        record = json.loads(read_plain(run.source))
    except (OSError, ValueError, RecursionError):
        return {}  # an older version of clusterdp wrote no such file
    return record if isinstance(record, dict) else {}


def commit_of(record: Mapping[str, Any]) -> str | None:
    git = record.get("git")
    if not isinstance(git, dict) or not git.get("commit"):
        return None
    return str(git["commit"]) + ("+" if git.get("dirty") else "")


def abbreviated(commit: str | None) -> str | None:
    return commit and commit[:12] + "+" * commit.endswith("+")


def _code(first: RunDir, second: RunDir) -> tuple[list[str], tuple[list[str], list[str]]]:
    """Returns the source files that differ, and the files that only one run has. Hard links to one inode are equal
    without a comparison."""
    if not (first.code.is_dir() and second.code.is_dir()):
        return [], ([], [])
    a, b = _files(first), _files(second)
    changed = [
        name for name in a if name in b and not _same(f"{first.code}/{name}", a[name], f"{second.code}/{name}", b[name])
    ]
    return sorted(changed), (sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys()))


def _files(run: RunDir) -> dict[str, os.stat_result]:
    found = {}
    for folder, subfolders, files in os.walk(run.code):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
        for name in files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, run.code)] = os.lstat(path)
    return found


def _same(a: str, status_a: os.stat_result, b: str, status_b: os.stat_result) -> bool:
    if os.path.samestat(status_a, status_b):
        return True
    if stat.S_IFMT(status_a.st_mode) != stat.S_IFMT(status_b.st_mode):
        return False
    if stat.S_ISLNK(status_a.st_mode):
        return os.readlink(a) == os.readlink(b)
    return status_a.st_size == status_b.st_size and filecmp.cmp(a, b, shallow=False)


def end_of(history: RunHistory) -> dict[str, Any]:
    return {"state": history.state.value, "step": history.step, "attempts": len(history.ran), **history.metrics}


def _short(value: object) -> str:
    text = "-" if value is None else number(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
