"""`clusterdp resume`: submits a new job for an existing run. The new job runs the snapshot of the run's first
submission."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import config as config_module
from clusterdp.config import Config
from clusterdp.errors import ConfigError, RunError, SubmitInDoubt
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, read_events, sweep_of, write_durably
from clusterdp.submission.job import Job
from clusterdp.submission.plan import Plan, new_name, plan_for
from clusterdp.submission.snapshot.code_snapshot import changed_since
from clusterdp.wording import some_of

if TYPE_CHECKING:
    from clusterdp.submission.send.lock import RunLock

FIXED = ("run_dir", "snapshot", "entry", "command", "script")


def plan_again(run: RunDir, from_step: int | None, overrides: Sequence[str]) -> Plan:
    """Returns a plan with the run's own config and the values that the user changes, such as time, size or learning
    rate."""
    for word in overrides:
        if word.split("=")[0].split(".")[0] in FIXED:
            raise ConfigError(f"{word}: cannot change in an existing run. Submit a new run with it.")
    values = read_config(run)
    values["restart"] = {**_section(values, "restart", run), "from_step": from_step}
    return plan_for(config_again(run, values, overrides), run, submit_dir_of(run))


def config_again(run: RunDir, values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """Returns the run's config, made from the values that its config.yaml had. A ConfigError names config.yaml."""
    try:
        return config_module.from_resolved(values, overrides, str(run.config))
    except ConfigError as error:
        if str(error).startswith(f"{run.config}: ") and "there is no such key" in str(error):
            raise ConfigError(f"{error} A newer clusterdp may have written the file.") from None
        raise


def read_config(run: RunDir) -> dict[str, Any]:
    """Returns the run's resolved config. Raises RunError if config.yaml is missing or cannot be read."""
    try:
        return config_module.read_resolved(run.config)
    except FileNotFoundError:
        raise RunError(f"{run.path}: has no config.yaml, so it is not a run folder. Name another.") from None
    except OSError as error:  # only the run's owner may read the config
        raise RunError(f"{run.config}: cannot be read: {error.strerror}. Ask whoever owns the run.") from None


def submit_dir_of(run: RunDir) -> Path:
    """Returns the folder in which `clusterdp submit` was called; the current folder if the folder of the submit is not
    recorded."""
    folders = [event["dir"] for event in read_events(run) if event.get("dir")]  # `submit-in-doubt` also has `dir`
    return Path(folders[0]) if folders else Path.cwd()


def old_code(run: RunDir) -> str:
    """Returns a line which says that the job runs the snapshot of the first submit, and which files have changed after
    that submit. Empty if no file has changed, or if the snapshot or the submit directory does not exist."""
    source = submit_dir_of(run)
    if not run.code.exists() or not source.is_dir():
        return ""
    changed = changed_since(run.code, source)
    if not changed:
        return ""
    return (
        f"It runs the code as it was at its submit; {some_of(changed, 4)} "
        f"{'has' if len(changed) == 1 else 'have'} changed since. `clusterdp submit` makes a new run of the code as it "
        "is now."
    )


def _section(values: dict[str, Any], name: str, run: RunDir) -> dict[str, Any]:
    section = values.get(name) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{run.config}: {name}: is not a mapping. Put back what submit wrote there.")
    return section


def changes_the_work(plan: Plan) -> bool:
    """Returns whether a finished run has work left under this plan. An entry may have work left if params such as
    `epochs` change. For a command, only a changed environment can make a difference."""
    config = plan.spec.config
    before, after = config_module.read_resolved(plan.run.config), dataclasses.asdict(config)
    parts = ("launch", "params", "train", "profile") if config.entry else ("launch",)
    return any(before.get(part) != after[part] for part in parts)


def send_again(plan: Plan, lock: RunLock) -> Job:
    """Writes config and script again, and submits a job. If the submit certainly failed, the old files are restored."""
    before = {
        path: read_plain(path)
        for path in (plan.run.config, plan.run.script, plan.run.path / "batch/rules.json")
        if path.exists()
    }
    try:
        plan.write_config()
        return plan.send(lock)
    except SubmitInDoubt:
        raise  # a job may exist that reads the new files
    except BaseException as error:
        for path, content in before.items():
            with suppress(OSError):  # after such an error, write_config() cannot have replaced the file
                write_durably(path, content, mode=0o600)
        if isinstance(error, OSError):
            raise RunError(f"{plan.run.path}: cannot be written: {error.strerror}. Make room, then resume.") from None
        raise


def plan_new(old: RunDir, overrides: Sequence[str]) -> Plan:
    """Returns the plan of a new run. Its folder is beside the old run's folder, unless `run_dir=` names another
    place."""
    values = read_config(old) | {"run_dir": None}
    restart = values.get("restart")
    if isinstance(restart, dict):
        values["restart"] = {**restart, "from_step": None}
    config = config_again(old, values, overrides)
    if config.run_dir:
        path = Path(os.path.normpath(Path.cwd() / Path(config.run_dir).expanduser()))
    else:
        beside = sweep_of(old)
        path = (beside or old).path.parent / new_name(config.name)
    return plan_for(config, RunDir(path), submit_dir_of(old), old if old.code.is_dir() else None)
