"""`after:`: the runs that a run follows, in each form that a config may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterdp.errors import ConfigError
from clusterdp.wording import closest

# What the run before must have reached: done; any: it is over; started: it has begun; each: of two sweeps, the element
# of the same number is done
STATES = ("done", "any", "started", "each")
WORD = re.compile(rf"({'|'.join(STATES)}):(?=.)", re.DOTALL)


def read_after(value: Any, place: str = "") -> dict[str, Any] | None:
    """Returns {"run_dir": the first run, "runs": [{"run": ..., "state": ...}, ...]}, the form in which config.yaml has
    the key; None if no run is named. A run is the word for it as it was typed, until submit has found its folder.
    Raises ConfigError, which begins with `place`."""
    if isinstance(value, Mapping) and "runs" in value:
        runs = [_one(each, place) for each in value["runs"]]
        return {"run_dir": value.get("run_dir") or runs[0]["run"], "runs": runs} if runs else None
    runs = [_one(each, place) for each in (value if isinstance(value, list) else [value]) if each not in (None, "")]
    return {"run_dir": runs[0]["run"], "runs": runs} if runs else None


def _one(value: Any, place: str) -> dict[str, str]:
    at = f"{place}: after: " if place else "after: "
    if isinstance(value, Mapping):
        state, run = value.get("state", "done"), value.get("run")
        if more := set(value) - {"run", "state"}:
            raise ConfigError(f"{at}{min(map(str, more))}: there is no such key. Keep run and state.")
    else:
        found = WORD.match(value) if isinstance(value, str) else None
        state, run = (found[1], value[found.end() :]) if found else ("done", value)
    if state not in STATES:
        guess = closest(str(state), STATES) or "one of them"
        raise ConfigError(f"{at}{state!r} is none of {', '.join(STATES)}. Write {guess}.")
    if isinstance(run, bool) or not isinstance(run, str | int) or not str(run).strip() or "\0" in str(run):
        raise ConfigError(f"{at}{run!r} is not a run. Name a run folder or a job id.")
    if "${" in str(run):
        raise ConfigError(f"{at}{run!r}: nothing is filled in here. Name it on the command line: --after RUN.")
    return {"run": str(run), "state": state}
