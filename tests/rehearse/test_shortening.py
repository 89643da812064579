"""What of a config is other in a rehearsal."""

from __future__ import annotations

from typing import Any

import pytest

from clusterdp import config
from clusterdp.config import Config
from clusterdp.errors import ConfigError
from clusterdp.rehearse import shortening
from clusterdp.rehearse.rehearsal import values_of
from clusterdp.rehearse.run_spec import Facts

UNKNOWN = Facts()


def rehearsed(values: dict[str, Any], facts: Facts = UNKNOWN, cut_short: bool = False) -> Config:
    loaded = config.from_mapping(values)
    more = shortening.for_steps(loaded, facts, cut_short) if facts.steps else shortening.for_first(loaded)
    return config.from_mapping(values_of(loaded), [*shortening.for_all(loaded), *more])


def test_rehearsal_config_disables_notifications_uploads_and_waiting() -> None:
    made = rehearsed(
        {
            "entry": "a.b:c",
            "checkpoint": {"url": "s3://bucket/run"},
            "metrics": {"to": ["wandb"]},
            "local": {"preempt_at": 0.5},
            "notify": {"command": ["mail", "me"]},
        }
    )
    assert (made.checkpoint.url, made.metrics.to, made.notify.on, made.local.preempt_at) == (None, [], [], None)
    assert {made.restart.start.wait_s, made.restart.disk.wait_s} == {0}
    assert made.resources.time == shortening.TIME


def test_growing_range_is_rehearsed_on_its_least_nodes() -> None:
    made = rehearsed(
        {
            "entry": "a.b:c",
            "resources": {"nodes": "2-8"},
            "train": {"global_batch_size": 32},
            "restart": {"grow_after_s": 600},
        }
    )
    assert (made.resources.nodes, made.restart.grow_after_s) == (2, None)


def test_rehearse_params_args_and_steps_are_applied_to_the_job() -> None:
    made = rehearsed(
        {
            "command": ["python", "train.py"],
            "params": {"epochs": 90, "lr": 0.1},
            "resources": {"time": "4:00:00"},
            "rehearse": {"params": {"epochs": 2}, "args": ["--max_iters=7", "a b$(c)"], "steps": 5},
        }
    )
    assert made.command == ["python", "train.py", "--max_iters=7", "a b$(c)"]
    assert (made.params, made.train.max_steps, made.resources.time) == ({"epochs": 2, "lr": 0.1}, 5, "4:00:00")


def test_rehearsal_saves_every_sixth_of_the_run_unless_every_steps_is_set() -> None:
    saves = rehearsed({"entry": "a.b:c"}, Facts(steps=120), cut_short=True)
    assert (saves.checkpoint.every_steps, saves.checkpoint.every_s, saves.train.max_steps) == (20, None, 120)
    often = rehearsed({"entry": "a.b:c", "checkpoint": {"every_steps": 3}}, Facts(steps=120))
    assert (often.checkpoint.every_steps, often.train.max_steps) == (3, None)


@pytest.mark.parametrize("command", ["python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]])
def test_rehearse_args_are_appended_to_the_command(command: str | list[str]) -> None:
    made = rehearsed({"command": command, "rehearse": {"args": ["--max_iters", "100"]}})
    assert made.command == ["python", "train.py", "--lr", "0.1", "--max_iters", "100"]


def test_rehearse_args_without_a_command_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^rehearse\.args: .* Use rehearse\.params"):
        rehearsed({"entry": "a.b:c", "rehearse": {"args": ["--max_iters=100"]}})


def test_pyxis_container_is_refused_on_the_fake_cluster_but_not_on_slurm() -> None:
    values = {"command": ["python"], "launch": {"container": {"image": "me.sqsh", "runtime": "pyxis"}}}
    loaded = config.from_mapping(values)
    with pytest.raises(ConfigError, match=r"launch\.container\.image: me\.sqsh: the fake cluster has no Pyxis"):
        shortening.for_all(loaded)
    assert shortening.for_all(loaded, "slurm")
