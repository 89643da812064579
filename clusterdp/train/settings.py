"""WorkerSettings: the worker's part of the run's config and of the batch script's environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterdp.config import Config, from_plain, read_resolved
from clusterdp.config.tree import (
    CheckpointConfig,
    LaunchConfig,
    MetricsConfig,
    ProfileConfig,
    RestartConfig,
    TrainConfig,
)
from clusterdp.errors import ConfigError, RunError
from clusterdp.rundir.names import LOCAL, RunDir
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.output.say import say

CLEANED = (
    "If the job has started it, a container or a wrapper has cleaned the environment: APPTAINER_CLEANENV, "
    "APPTAINER_CONTAINALL, --cleanenv, --containall, env -i, sudo. Let RANK, WORLD_SIZE, MASTER_*, SLURM_* and "
    "CLUSTERDP_* through. Else use another folder."
)
FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # floats such as 1e-3, which YAML 1.1 reads as strings


@dataclass(frozen=True)
class WorkerSettings:
    """The worker's settings. The sections are instances of the config's own classes, which define all defaults.

    checkpoint.url: the place for checkpoints, or the default place. If checkpoint.url is None, no checkpoints are
    saved.
    """

    run_dir: Path | None = None
    entry: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    margin_s: float = LaunchConfig.grace_s
    end_time: float | None = None
    attempt: str | None = None  # None outside a Slurm job, where the ranks choose a name
    resume_step: int | None = None

    @classmethod
    def of_worker(cls, run_dir: Path) -> WorkerSettings:
        """Returns the settings of a rank that the script of this run has started. Raises RunError if the process lacks
        the variables of the job, or has those of another one."""
        told = os.environ.get("CLUSTERDP_RUN_DIR")
        if told and os.path.realpath(told) != os.path.realpath(run_dir):
            raise RunError(f"error: CLUSTERDP_RUN_DIR is {told}, and this is a rank of {run_dir}. {CLEANED}")
        check_stranger(run_dir)
        return cls.read(run_dir)

    @classmethod
    def read(cls, run_dir: Path, environ: Mapping[str, str] = os.environ) -> WorkerSettings:
        """Reads the settings of a run folder. Raises ConfigError if it has no readable config.yaml.

        A key that only a newer version knows is reported, and has no effect.
        """
        path = run_dir / "config.yaml"
        try:
            values = read_resolved(path)
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}. Give the worker the folder of a run.") from None
        unknown: list[str] = []
        try:
            config = from_plain(Config, values, unknown)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if unknown and SlurmEnv.read(environ).rank == 0:
            say(f"clusterdp: {path}: not known to this version, and without effect: {', '.join(unknown)}", error=True)
        url = environ.get("CLUSTERDP_CHECKPOINT_URL") or config.checkpoint.url or str(run_dir / "checkpoints")
        return cls(
            run_dir=run_dir,
            entry=config.entry or "",
            params=config.params,
            checkpoint=replace(config.checkpoint, url=url),
            train=config.train,
            restart=config.restart,
            metrics=config.metrics,
            profile=config.profile,
            margin_s=config.launch.grace_s,
            **exported(environ),
        )

    @classmethod
    def bare(cls, params: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> WorkerSettings:
        """Returns settings without a config. The run folder is CLUSTERDP_RUN_DIR; if it is not set, the run has no
        folder."""
        folder = environ.get("CLUSTERDP_RUN_DIR")
        run_dir = Path(folder).absolute() if folder else None
        url = environ.get("CLUSTERDP_CHECKPOINT_URL") or (str(run_dir / "checkpoints") if run_dir else None)
        return cls(run_dir=run_dir, params=params, checkpoint=CheckpointConfig(url=url), **exported(environ))

    @classmethod
    def own(cls, params: Mapping[str, Any]) -> WorkerSettings:
        """Returns the settings of a program without our worker. If the program is the `command:` of a job, the settings
        come from the config in the run folder; if not, the settings are those of bare(). The program is not profiled,
        because only the worker can end after some steps."""
        bare = cls.bare(params)
        check_stranger(bare.run_dir)
        if bare.run_dir is None or not (bare.run_dir / "config.yaml").exists():
            return bare
        told = cls.read(bare.run_dir)
        return replace(told, params=params, profile=replace(told.profile, steps=None, find=None))


def check_stranger(run_dir: Path | None) -> None:
    """Raises RunError if this process is in the run folder of a job that runs, or in its code, and has none of the
    variables that the job gives to its ranks: each rank would train alone, and write into the same files."""
    if not os.environ.get("CLUSTERDP_ATTEMPT", LOCAL).startswith(LOCAL):
        return
    here = Path.cwd()
    folders = [run_dir] if run_dir else [code.parent for code in (here, *here.parents) if code.name == "code"]
    for folder in folders:
        for run in map(RunDir, [folder, *folder.glob("[0-9]*")]):  # the elements of a sweep
            if job := run.live_job():
                raise RunError(
                    f"error: {run.path} belongs to job {job}, whose variables this process has not. {CLEANED}"
                )


def exported(environ: Mapping[str, str]) -> dict[str, Any]:
    end = environ.get("CLUSTERDP_JOB_END_TIME") or environ.get("SLURM_JOB_END_TIME")
    step = environ.get("CLUSTERDP_RESUME_STEP")
    return {
        "attempt": environ.get("CLUSTERDP_ATTEMPT") or SlurmEnv.read(environ).attempt,
        "end_time": float(end) if end else None,
        "resume_step": int(step) if step else None,
    }


def parse_words(words: Sequence[str]) -> dict[str, Any]:
    """Parses `key=value` words of a command line. The values are parsed like values in a config."""
    import yaml

    params = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{word}: is not of the form key=value. Write e.g. epochs=3.")
        try:
            params[key] = float(value) if FLOAT.fullmatch(value) else yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: for an invalid date, or 5,000 digits
            raise ConfigError(f"{word:.80}: its value is not YAML. Put it in quotes within the shell's.") from None
    return params
