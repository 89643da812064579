"""A new job for a run that is there: `clusterdp resume`. The code stays the snapshot of the first submission."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterdp import config as config_module
from clusterdp.errors import ConfigError, RunError
from clusterdp.launch.job import Job
from clusterdp.launch.plan import Plan, plan_for
from clusterdp.rundir import RunDir, read_events

FIXED = ("run_dir", "snapshot", "entry", "command", "script")


def plan_again(run: RunDir, from_step: int | None, overrides: Sequence[str]) -> Plan:
    """The run's own config with other values: another time, size or learning rate."""
    for word in overrides:
        if word.split("=")[0].split(".")[0] in FIXED:
            raise ConfigError(f"{word}: cannot change in a run that is there. Submit a new run with it.")
    try:
        values = config_module.read_resolved(run.config)
    except FileNotFoundError:
        raise RunError(f"{run.path}: has no config.yaml, so it is no run of clusterdp's. Name another.") from None
    values["restart"] = {**(values.get("restart") or {}), "from_step": from_step}
    config = config_module.from_mapping(_escaped(values), overrides)
    submitted = [event for event in read_events(run) if event.get("event") == "submitted" and event.get("dir")]
    return plan_for(config, run, Path(submitted[0]["dir"]) if submitted else Path.cwd())


def send_again(plan: Plan) -> Job:
    """Write config and script anew and submit; if that fails, the old ones are back."""
    before = {path: path.read_bytes() for path in (plan.run.config, plan.run.script)}
    try:
        plan.write_config()
        return plan.send()
    except BaseException:
        for path, content in before.items():
            path.write_bytes(content)
        raise


def _escaped(value: Any) -> Any:
    """Resolved values hold no interpolation: a `${HOME}` in them is meant for a shell, and stays."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
