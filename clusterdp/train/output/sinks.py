"""Sinks: also send the records of metrics/ to TensorBoard, Weights & Biases and MLflow, where all attempts are one run:
TensorBoard writes to a folder in the run folder, and the run folder keeps the ids for W&B and MLflow.

A sink is any function of a record, such as {"time": 1.7e9, "step": 40, "loss": 0.3}. Append your own sink to
job.metrics.sinks.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clusterdp.errors import ConfigError
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, write_durably
from clusterdp.train.output.say import say

PLACE = ("time", "step", "total")  # fields of a record that are not measurements


def open_sinks(names: Sequence[str], run: RunDir, options: Mapping[str, Any]) -> list[Any]:
    """Opens the sinks of `metrics.to`, on rank 0. Raises ConfigError if a sink is unknown or not installed."""
    kinds: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
    found = []
    for name in names:
        if name not in kinds:
            raise ConfigError(f"metrics.to: {name!r} is not known. Use {', '.join(kinds)}.")
        try:
            found.append(kinds[name](run, dict(options.get(name) or {})))
        except ConfigError:
            raise
        except Exception as error:  # an unreachable server must not end the training
            what = f"{type(error).__name__}: {error}".split("\n")[0]
            say(f"clusterdp: metrics.to: {name} gets no records in this attempt: {what}", error=True)
    return found


class TensorBoard:
    """Sink for `tensorboard --logdir RUN/tensorboard`. Steps that are trained again replace the earlier ones."""

    def __init__(self, run: RunDir, options: Mapping[str, Any]):
        self._make = _library("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder = run.path / "tensorboard"
        self._options = {"flush_secs": 10, **options}  # flush_secs: seconds of records that a killed rank may lose
        self._writer: Any = None
        self._has_hidden = False

    def __call__(self, record: Mapping[str, Any]) -> None:
        step = record.get("step")
        writer = self.writer_at(step)
        try:
            for name, value in _numbers(record).items():
                writer.add_scalar(name, value, step, walltime=record["time"])
        except OSError:
            self._writer = None  # a full disk has ended the writer's thread, so that the next record opens another file
            raise

    def writer_at(self, step: int | None) -> Any:
        """Returns the SummaryWriter. The first call of an attempt with a step hides records from this step on, which
        are trained again. Without a step, before the state is restored, nothing is hidden yet."""
        if self._writer is not None and step is not None and not self._has_hidden:
            self.close()
            self._writer = None
        if self._writer is None:
            self._writer = self._make(str(self._folder), purge_step=step, **self._options)
            self._has_hidden = step is not None
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB:
    """options: arguments for wandb.init(), such as project. The charts' x-axis is `step`, because W&B's own counter
    cannot go back when steps are trained again."""

    def __init__(self, run: RunDir, options: Mapping[str, Any]):
        wandb = _library("wandb", "wandb")
        name = _kept(run.path / "wandb-id", secrets.token_hex(8))
        ours = {"id": name, "resume": "allow", "dir": str(run.path), "name": run.path.name}
        self._run = wandb.init(**{**ours, **options})
        self._run.define_metric("*", step_metric="step")

    def __call__(self, record: Mapping[str, Any]) -> None:
        if numbers := _numbers(record):
            self._run.log({**numbers, "step": record.get("step")})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """options: tracking_uri, by default $MLFLOW_TRACKING_URI, else mlruns/ in the run folder
    (`mlflow ui --backend-store-uri RUN/mlruns`); experiment, by default Default."""

    def __init__(self, run: RunDir, options: Mapping[str, Any]):
        mlflow = _library("mlflow", "mlflow")
        self._metric = mlflow.entities.Metric
        self._client = _mlflow_client(mlflow, options.get("tracking_uri"), run)
        file = run.path / "mlflow-run-id"
        if not file.exists():
            name = options.get("experiment") or "Default"
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            _kept(file, self._client.create_run(experiment, run_name=run.path.name).info.run_id)
        self._id = read_plain(file).decode().strip()
        self._client.update_run(self._id, status="RUNNING")

    def __call__(self, record: Mapping[str, Any]) -> None:
        at, step = int(record["time"] * 1000), int(record.get("step") or 0)
        metrics = [self._metric(name, value, at, step) for name, value in _numbers(record).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _mlflow_client(mlflow: Any, uri: str | None, run: RunDir) -> Any:
    """Returns an MLflow client. mlflow-skinny, which clusterdp's extra installs, supports only servers and folders."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or str(run.path / "mlruns")
    if "://" not in uri or uri.startswith("file:"):
        # MLflow 3.7 and later refuse folders, whose format is frozen, unless this variable is set.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    elif uri.startswith(("sqlite:", "postgresql", "mysql", "mssql")):
        for module in ("sqlalchemy", "alembic"):
            if find_spec(module) is None:
                raise ConfigError(
                    f"metrics.options.mlflow.tracking_uri: {uri.split(':')[0]} needs {module}, which mlflow-skinny "
                    "does not include. pip install mlflow; or name a folder or a server."
                )
    return mlflow.MlflowClient(uri)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the record's measurements that are numbers, including NaN, which is a string in JSON."""
    found = {}
    for name, value in record.items():
        if name in PLACE or isinstance(value, bool):
            continue
        if isinstance(value, int | float) or value in ("nan", "inf", "-inf"):
            found[name] = float(value)
    return found


def _library(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"metrics.to: {extra} is not installed here. pip install 'clusterdp[{extra}]'.") from None


def _kept(file: Path, value: str) -> str:
    """Returns the text of a file in the run folder. If the file is missing, it is first written with `value`."""
    if not file.exists():
        write_durably(file, value + "\n")
    return read_plain(file).decode().strip()
