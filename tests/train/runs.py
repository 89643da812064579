"""A run folder as `clusterdp submit` makes it, and what became of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterdp.rundir import RunDir, read_events, read_lines


class Run:
    def __init__(self, path: Path, entry: str, params: dict[str, Any] | None = None, **sections: Any):
        self.path = path
        self.dir = RunDir(path)
        path.mkdir(parents=True)
        config = {"entry": entry, "params": params or {}, **sections}
        self.dir.config.write_text(json.dumps(config))  # JSON is YAML

    def attempt(self, name: str) -> dict[str, str]:
        """The environment of an attempt, its folder being made, as the batch script does both."""
        self.dir.attempt(name).logs.mkdir(parents=True)
        return {"CLUSTERDP_RUN_DIR": str(self.path), "CLUSTERDP_ATTEMPT": name}

    def outcome(self, name: str) -> str | None:
        file = self.dir.attempt(name).outcome
        return file.read_text().strip() if file.exists() else None

    def saved(self, name: str) -> int:
        return int(self.dir.attempt(name).saved.read_text())

    @property
    def events(self) -> list[str]:
        """But for those that come by the clock."""
        return [str(event["event"]) for event in read_events(self.dir) if event["event"] != "spent"]

    def event(self, name: str) -> dict[str, Any]:
        return next(event for event in read_events(self.dir) if event["event"] == name)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [record for path in sorted(self.dir.metrics.glob("*.jsonl")) for record in read_lines(path)]

    def last(self, name: str) -> Any:
        return next(record[name] for record in reversed(self.metrics) if name in record)

    def step(self) -> int:
        """How far it has got, as far as its metrics tell."""
        return max((record["step"] for record in self.metrics), default=0)
