"""`clusterdp again`: a new run from the record of another: its config, with other values, and its code as it was."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from clusterdp.launch.plan import Plan, new_name, plan_for
from clusterdp.launch.resume import config_again, read_config, submit_dir_of
from clusterdp.rundir import RunDir, sweep_of


def plan_new(old: RunDir, overrides: Sequence[str]) -> Plan:
    """The plan of a new run, which lies beside the old one unless `run_dir=` names another place."""
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
