"""Settings: what the worker needs of the resolved config and the batch script's exports; nobody else reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterdp.errors import ConfigError
from clusterdp.slurm.env import SlurmEnv

FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # YAML 1.1 takes 1e-3 for a string


@dataclass(frozen=True)
class Saving:
    url: str | None = None  # None: nothing is saved
    every_steps: int | None = None
    every_s: float | None = 600.0
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    retry_s: float = 120.0
    keep_last: int = 3
    keep_every: int | None = None
    keep_local: int = 0
    async_save: bool = True
    max_failures: int = 3
    check_replicas_every: int = 1
    start_from: str | None = None
    start_only: Sequence[str] = ()


@dataclass(frozen=True)
class Techniques:
    """The config's `train`, as far as it is about the model and its steps; see clusterdp.config for what each means."""

    strategy: str = "ddp"
    ddp: Mapping[str, Any] = field(default_factory=dict)
    comm_hook: str | None = None
    powersgd: Mapping[str, Any] = field(default_factory=dict)
    fsdp: Mapping[str, Any] = field(default_factory=dict)
    amp: Mapping[str, Any] = field(default_factory=dict)
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    on_nan: str | None = None
    sync_batchnorm: bool = False
    recompute: Sequence[str] = ()
    compile: bool | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Measuring:
    to: Sequence[str] = ()
    every_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tracing:
    start: int | None = None
    steps: int = 5
    ranks: Sequence[int] = (0,)


@dataclass(frozen=True)
class Profiling:
    """The config's `profile`."""

    steps: int | None = None
    find: str | None = None
    trace: Tracing = field(default_factory=Tracing)

    @classmethod
    def read(cls, section: Mapping[str, Any]) -> Profiling:
        return cls(**{**section, "trace": Tracing(**(section.get("trace") or {}))})


@dataclass(frozen=True)
class Settings:
    """The defaults are those of a function that is run without a config, by plain python or torchrun."""

    run_dir: Path | None = None
    entry: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Saving = field(default_factory=Saving)
    train: Techniques = field(default_factory=Techniques)
    metrics: Measuring = field(default_factory=Measuring)
    profile: Profiling = field(default_factory=Profiling)
    seed: int = 0
    deterministic: bool = False
    backend: str | None = None
    timeout_s: float = 1800.0
    margin_s: float = 60.0
    end_time: float | None = None
    attempt: str | None = None  # None: no Slurm job; the ranks then make one up
    resume_step: int | None = None

    @classmethod
    def read(cls, run_dir: Path, environ: Mapping[str, str] = os.environ) -> Settings:
        """Of a run folder. ConfigError if it has no readable config.yaml."""
        from clusterdp.config import read_resolved

        try:
            config = read_resolved(run_dir / "config.yaml")
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}. Give the worker the folder of a run.") from None
        checkpoint, train = dict(config.get("checkpoint") or {}), config.get("train") or {}
        url = environ.get("CLUSTERDP_CHECKPOINT_URL") or checkpoint.pop("url", None) or str(run_dir / "checkpoints")
        known = {name: checkpoint[name] for name in Saving.__dataclass_fields__ if name in checkpoint and name != "url"}
        return cls(
            run_dir=run_dir,
            entry=config.get("entry") or "",
            params=config.get("params") or {},
            checkpoint=Saving(url=url, **known),
            train=Techniques(**{name: train[name] for name in Techniques.__dataclass_fields__ if name in train}),
            profile=Profiling.read(config.get("profile") or {}),
            metrics=Measuring(**(config.get("metrics") or {})),
            **{name: train[name] for name in ("seed", "deterministic", "backend", "timeout_s") if name in train},
            margin_s=float((config.get("launch") or {}).get("grace_s", 60.0)),
            **exported(environ),
        )

    @classmethod
    def bare(cls, params: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
        """Without a config. CLUSTERDP_RUN_DIR, if set, is where the run is kept; else nothing is saved."""
        folder = environ.get("CLUSTERDP_RUN_DIR")
        run_dir = Path(folder).absolute() if folder else None
        url = environ.get("CLUSTERDP_CHECKPOINT_URL") or (str(run_dir / "checkpoints") if run_dir else None)
        return cls(run_dir=run_dir, params=params, checkpoint=Saving(url=url), **exported(environ))

    @classmethod
    def own(cls, params: Mapping[str, Any]) -> Settings:
        """Of a program that is its own worker: as `command:` of a job its run folder has a config, else it is bare.
        To end after some steps (`profile`) is the worker's affair alone."""
        bare = cls.bare(params)
        if bare.run_dir is None or not (bare.run_dir / "config.yaml").exists():
            return bare
        told = cls.read(bare.run_dir)
        return replace(told, params=params, profile=replace(told.profile, steps=None, find=None))


def exported(environ: Mapping[str, str]) -> dict[str, Any]:
    end = environ.get("CLUSTERDP_JOB_END_TIME") or environ.get("SLURM_JOB_END_TIME")
    step = environ.get("CLUSTERDP_RESUME_STEP")
    return {
        "attempt": environ.get("CLUSTERDP_ATTEMPT") or SlurmEnv.read(environ).attempt,
        "end_time": float(end) if end else None,
        "resume_step": int(step) if step else None,
    }


def parse_words(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words of a command line, the values read as in a config."""
    import yaml

    params = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{word}: is not of the form key=value. Write e.g. epochs=3.")
        try:
            params[key] = float(value) if FLOAT.fullmatch(value) else yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none, 5,000 digits
            raise ConfigError(f"{word:.80}: its value is not YAML. Put it in quotes within the shell's.") from None
    return params
