"""WorkerSettings: what the worker reads in a run folder, and that no default of the config stands twice."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from clusterdp.checkpoint import Checkpointer
from clusterdp.config import dump, from_mapping, tree
from clusterdp.config.tree import AmpConfig, CheckpointConfig, TraceConfig, TrainConfig
from clusterdp.errors import ConfigError
from clusterdp.train import Amp, Group, Tracer, settings
from clusterdp.train.settings import WorkerSettings


def test_worker_settings_equal_the_config_written_by_submit(tmp_path: Path) -> None:
    config = from_mapping({"entry": "a:b", "checkpoint": {"keep_last": 7}, "train": {"amp": {"level": "O2"}}})
    (tmp_path / "config.yaml").write_text(dump(config))
    read = WorkerSettings.read(tmp_path, {})
    assert read.checkpoint == dataclasses.replace(config.checkpoint, url=str(tmp_path / "checkpoints"))
    assert (read.train, read.metrics, read.profile) == (config.train, config.metrics, config.profile)
    assert (read.entry, read.margin_s) == ("a:b", config.launch.grace_s)


def test_worker_settings_fill_omitted_keys_with_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("checkpoint:\nparams:\ntrain: {amp: null, clip_norm: 1.0}\n")
    read = WorkerSettings.read(tmp_path, {})
    assert read.checkpoint == CheckpointConfig(url=str(tmp_path / "checkpoints"))
    assert (read.train, read.params) == (TrainConfig(clip_norm=1.0), {})


@pytest.mark.parametrize("rank", ["0", "1"])
def test_unknown_config_keys_are_reported_by_rank_0_only(
    rank: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("future: 1\nmetrics: {when: now}\ntrain: {amp: {bits: 4}, seed: 3}\n")
    environ = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
    assert WorkerSettings.read(tmp_path, environ).train.seed == 3
    said = f"clusterdp: {tmp_path}/config.yaml: not known to this version, and without effect: "
    assert capfd.readouterr().err == (f"{said}future, metrics.when, train.amp.bits\n" if rank == "0" else "")


@pytest.mark.parametrize(
    ("text", "key"), [("train: [1]", "train"), ("checkpoint: x", "checkpoint"), ("train: {amp: 3}", "train.amp")]
)
def test_config_section_of_a_wrong_type_is_an_error_with_its_key(text: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"config.yaml: {key}: is .*, and no section. Put back what submit wrote"):
        WorkerSettings.read(tmp_path, {})


def test_worker_settings_without_config_enable_saves_only_with_a_run_folder() -> None:
    assert WorkerSettings.bare({}, {}).checkpoint.url is None
    assert WorkerSettings.bare({}, {"CLUSTERDP_RUN_DIR": "/run"}).checkpoint.url == "/run/checkpoints"


def defaults(kind: Any) -> dict[str, Any]:
    """Of a dataclass's own fields, or of a function's parameters, by name; those that are None say nothing."""
    if dataclasses.is_dataclass(kind):
        found = {each.name: each.default for each in dataclasses.fields(kind)}
    else:
        found = {name: each.default for name, each in inspect.signature(kind).parameters.items()}
    return {name: value for name, value in found.items() if value not in (None, dataclasses.MISSING, inspect._empty)}


def test_worker_settings_do_not_repeat_defaults_of_the_config() -> None:
    sections = [kind for kind in vars(tree).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    there = {pair for kind in sections for pair in defaults(kind).items()}
    here = [kind for kind in vars(settings).values() if getattr(kind, "__module__", "") == settings.__name__]
    assert WorkerSettings in here
    assert not {pair for kind in here if isinstance(kind, type) for pair in defaults(kind).items()} & there


@pytest.mark.parametrize(
    ("piece", "section"),
    [(Amp, AmpConfig), (Group.start, TrainConfig), (Checkpointer, CheckpointConfig), (Tracer, TraceConfig)],
)
def test_amp_group_checkpointer_and_tracer_have_the_defaults_of_the_config(piece: Any, section: Any) -> None:
    own, configured = defaults(piece), defaults(section)
    shared = own.keys() & configured.keys() - {"keep_local"}  # 0 of the config: there is no folder nearby
    assert shared and {name: own[name] for name in shared} == {name: configured[name] for name in shared}
