"""The config changes that make a rehearsal short and private: the job saves often, writes only to its folder, and sends
no notices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterdp.config import Config
from clusterdp.config.tree import POLICIES
from clusterdp.errors import ConfigError
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.submission.render.script_spec import words_of

SAVES = 6  # number of checkpoints of an undisturbed run: a drill needs some, and a save costs time
LEAST_S = 2.0  # seconds between saves of the first run, because its number of steps is not known yet
TIME = "10"  # time limit in minutes for a config without one, because a real partition may have a limit


def for_all(config: Config, cluster: str = "local") -> list[str]:
    """Returns the overrides for every run. Raises ConfigError if the cluster lacks what the config needs."""
    container = config.launch.container
    if cluster == "local" and container.image and container.runtime == "pyxis":
        raise ConfigError(
            f"launch.container.image: {container.image}: the fake cluster has no Pyxis, which starts containers. Add "
            "launch.container.image=null to rehearse with the programs of this machine, or use --cluster slurm."
        )
    given: dict[str, Any] = {
        "local.preempt_at": None,
        "checkpoint.url": None,
        "metrics.to": [],
        "notify.on": [],
        **{f"restart.{cause}.wait_s": 0 for cause in POLICIES},
        **{f"params.{name}": value for name, value in config.rehearse.params.items()},
    }
    if config.rehearse.args:
        words = words_of(config.command, "command")
        if not words:
            raise ConfigError("rehearse.args: are more words of `command`, and this job has none. Use rehearse.params.")
        given["command"] = [*words, *config.rehearse.args]
    if config.resources.time is None or config.resources.time in ("UNLIMITED", "INFINITE"):
        given["resources.time"] = TIME
    if config.resources.is_elastic:  # one number, so that the end states of all runs have the same bits
        given |= {"resources.nodes": config.resources.least_nodes, "restart.grow_after_s": None}
    if config.rehearse.steps is not None:
        given["train.max_steps"] = config.rehearse.steps
    return [f"{key}={json.dumps(value)}" for key, value in given.items()]


def for_first(config: Config) -> list[str]:
    """Returns further overrides for the first run, because its number of steps is not known yet."""
    return [f"checkpoint.every_s={LEAST_S}"] if config.checkpoint.every_steps is None else []


def for_steps(config: Config, facts: Facts, cut_short: bool) -> list[str]:
    """Returns further overrides for the runs after the first run."""
    if facts.steps is None:
        return []
    every = max(1, facts.steps // SAVES)
    if config.checkpoint.every_steps is not None:
        every = min(every, config.checkpoint.every_steps)
    limit = [f"train.max_steps={facts.steps}"] if cut_short else []
    return [*limit, "checkpoint.every_s=null", f"checkpoint.every_steps={every}"]


@dataclass(frozen=True)
class Change:
    """A value of the config that differs in the rehearsal."""

    key: str
    config: Any
    rehearsal: Any


def changes(values: Mapping[str, Any], overrides: Sequence[str]) -> list[Change]:
    """Returns the values that the overrides change. `values`: the config. If several overrides have the same key, the
    last override is valid."""
    found = []
    for key, text in dict(word.split("=", 1) for word in overrides).items():
        before: Any = values
        for name in key.split("."):
            before = before.get(name) if isinstance(before, Mapping) else None
        if before != (after := json.loads(text)):
            found.append(Change(key, before, after))
    return found
