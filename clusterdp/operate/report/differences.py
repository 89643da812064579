"""What differs between the runs of one page: config, commit, packages and ends, a row for each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterdp.errors import ClusterdpError
from clusterdp.operate.diff import OWN, abbreviated, commit_of, config_of, end_of, source_record
from clusterdp.operate.formatting import number
from clusterdp.operate.run_history import RunHistory


@dataclass(frozen=True)
class DifferenceRow:
    """A value for each run, `-` where a run has no such key."""

    group: str
    key: str
    values: list[str]


def differences(histories: Sequence[RunHistory]) -> list[DifferenceRow]:
    records = [source_record(history.run) for history in histories]
    groups: list[tuple[str, list[dict[str, Any]]]] = [
        ("config", [_config(history) for history in histories]),
        ("code", [{"commit": abbreviated(commit_of(record))} for record in records]),
        ("packages", [_packages(record) for record in records]),
        ("ended", [end_of(history) for history in histories]),
    ]
    if not all(groups[2][1]):  # of one of them they are not known
        del groups[2]
    rows = []
    for group, of_runs in groups:
        for key in dict.fromkeys(key for values in of_runs for key in values):
            values = [each.get(key) for each in of_runs]
            if any(value != values[0] for value in values) and not (group == "config" and key in OWN):
                rows.append(DifferenceRow(group, key, ["-" if value is None else number(value) for value in values]))
    return rows


def _config(history: RunHistory) -> dict[str, Any]:
    try:
        return config_of(history.run)
    except ClusterdpError:  # it is no config any more
        return {}


def _packages(record: dict[str, Any]) -> dict[str, Any]:
    packages = record.get("packages")
    return packages if isinstance(packages, dict) else {}
