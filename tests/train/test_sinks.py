"""Sinks: the same records elsewhere, as one run over all attempts; and training goes on when elsewhere is away.

TensorBoard, W&B and MLflow are stand-ins here, which write down how they were called. The last tests are with the true
ones, where they are installed: into a folder, without a server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.config.tree import MetricsConfig
from clusterdp.errors import ConfigError
from clusterdp.rundir import RunDir
from clusterdp.train import JobHandle, Trainer
from clusterdp.train.output import sinks
from clusterdp.train.output.metric_log import MetricLog
from clusterdp.train.output.sinks import open_sinks
from clusterdp.train.settings import WorkerSettings

RECORD = {"time": 12.5, "step": 40, "total": 80, "epoch": 1, "loss": 0.5, "digest": "a0", "norm": "nan"}


class Calls(list[Any]):
    """Any method of any name, remembered with its words."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *words, **options: self.append((name, *words, options)) or self

    def named(self, name: str) -> list[Any]:
        return [call for call in self if call[0] == name]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_tensorboard_sink_purges_repeated_steps(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    module = SimpleNamespace(SummaryWriter=lambda folder, **o: calls.append(("made", folder, o)) or calls)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    (sink,) = open_sinks(["tensorboard"], run, {})
    sink(RECORD)
    sink({**RECORD, "step": 50})
    sink.close()
    ((_, folder, options),) = calls.named("made")
    assert folder == str(run.path / "tensorboard")
    assert options["purge_step"] == 40  # of its first record: what an attempt before wrote from there on is hidden
    names = {call[1]: call[2] for call in calls.named("add_scalar")[:3]}
    assert names.keys() == {"epoch", "loss", "norm"}
    assert names["loss"] == 0.5
    assert calls[-1][0] == "close"


def test_wandb_sink_uses_one_id_for_all_attempts(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setitem(sys.modules, "wandb", calls)
    for _ in range(2):
        (sink,) = open_sinks(["wandb"], run, {"wandb": {"project": "digits"}})
        sink(RECORD)
        sink.close()
    first, second = (call[-1] for call in calls.named("init"))
    assert first == second
    assert first["resume"] == "allow"
    assert first["project"] == "digits"
    assert calls.named("log")[0][1]["step"] == 40
    assert len(calls.named("finish")) == 2


def test_mlflow_sink_continues_one_mlflow_run_in_all_attempts(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: None,
        create_experiment=lambda name: calls.append(("experiment", name)) or "7",
        create_run=lambda e, run_name: calls.append(("run", e)) or SimpleNamespace(info=SimpleNamespace(run_id="r1")),
        update_run=lambda run_id, status: calls.append(("update", run_id, status)),
        log_batch=lambda run_id, metrics: calls.append(("batch", run_id, metrics)),
        set_terminated=lambda run_id: calls.append(("over", run_id)),
    )
    entities = SimpleNamespace(Metric=lambda *words: words)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda uri: client, entities=entities))
    for _ in range(2):
        (sink,) = open_sinks(["mlflow"], run, {"mlflow": {"experiment": "mine"}})
        sink(RECORD)
        sink.close()
    assert calls.named("run") == [("run", "7")]  # once
    assert {call[1] for call in calls.named("update") + calls.named("batch") + calls.named("over")} == {"r1"}
    assert ("loss", 0.5, 12500, 40) in calls.named("batch")[0][2]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_missing_sink_package_is_an_error_with_its_pip_extra(
    run: RunDir, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'clusterdp\[{name}\]'"):
        open_sinks([name], run, {})


def test_unopenable_sink_is_reported_and_skipped(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError("no route to host\nand much more")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    assert open_sinks(["wandb"], run, {}) == []
    said = capfd.readouterr().err
    assert said == "clusterdp: metrics.to: wandb gets no records in this attempt: ConnectionError: no route to host\n"


@pytest.mark.parametrize("module", ["sqlalchemy", "alembic"])
def test_mlflow_sqlite_uri_without_its_packages_is_an_error(
    run: RunDir, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(entities=SimpleNamespace(Metric=None)))
    monkeypatch.setattr(sinks, "find_spec", lambda name: None if name == module else name)
    with pytest.raises(ConfigError, match=rf"tracking_uri: sqlite needs {module}, .* pip install mlflow;"):
        open_sinks(["mlflow"], run, {"mlflow": {"tracking_uri": "sqlite:///runs.db"}})


def test_failing_sink_is_dropped_and_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def away(record: dict[str, Any]) -> None:
        raise ConnectionError("no route to host")

    log = MetricLog(tmp_path / "m.jsonl", sinks=[away, seen.append])
    log.write(loss=1.0)
    log.write(loss=0.5)
    assert [record["loss"] for record in seen] == [1.0, 0.5]
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == 2
    assert capfd.readouterr().err == "clusterdp: metrics: function gets no more records: no route to host\n"


def test_failing_close_of_a_sink_does_not_fail_the_attempt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A stop that is saved would count as a crash."""
    closed: list[str] = []

    class Away(list[Any]):
        __call__ = list.append

        def close(self) -> None:
            closed.append("tried")
            raise ConnectionError("no route to host\nand much more")

    log = MetricLog(tmp_path / "m.jsonl", sinks=[Away(), Away()])
    log.write(loss=1.0)
    log.close()
    assert closed == ["tried", "tried"]
    assert capfd.readouterr().err == "clusterdp: metrics: Away was not closed: no route to host\n" * 2


def test_sinks_get_records_without_a_run_folder() -> None:
    seen: list[Any] = []
    log = MetricLog(None, sinks=[seen.append])
    log.step({"step": 1}, {"loss": 1.0})
    assert seen[0]["loss"] == 1.0


def two_attempts(name: str, run: RunDir, options: dict[str, Any]) -> None:
    for steps in ((1, 2, 3), (3, 4)):  # the second trains the last one again
        (sink,) = open_sinks([name], run, {name: options})
        for step in steps:
            sink({**RECORD, "step": step, "loss": 1 / step})
        sink.close()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("place", ["in the run folder", "elsewhere"])
def test_real_mlflow_has_one_run_for_two_attempts(
    run: RunDir, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")  # undone afterwards, also where the sink sets it
        monkeypatch.delenv(name)
    folder = run.path / "mlruns" if place == "in the run folder" else tmp_path / "all"
    two_attempts(
        "mlflow", run, {"experiment": "mine"} | ({"tracking_uri": str(folder)} if place == "elsewhere" else {})
    )
    client = mlflow.MlflowClient(str(folder))
    (only,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert only.info.status == "FINISHED"
    assert only.info.run_name == run.path.name
    points = client.get_metric_history(only.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == [(1, 1.0), (2, 0.5), (3, 1 / 3), (3, 1 / 3), (4, 0.25)]


@pytest.mark.filterwarnings("default")
def test_real_tensorboard_shows_each_step_once(run: RunDir) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_attempts("tensorboard", run, {})
    shown = EventAccumulator(str(run.path / "tensorboard"))
    shown.Reload()
    assert [point.step for point in shown.Scalars("loss")] == [1, 2, 3, 4]


def test_tensorboard_writer_of_an_unrestored_job_hides_no_steps(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int | None] = []

    def writer(folder: str, purge_step: int | None, **options: Any) -> Any:
        opened.append(purge_step)
        return SimpleNamespace(close=lambda: opened.append(-1), add_scalar=lambda *_, **__: None)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    (sink,) = open_sinks(["tensorboard"], run, {})
    sink.writer_at(None)
    sink({"step": 7, "time": 1.0, "loss": 1.0})
    sink.writer_at(9)
    assert opened == [None, -1, 7]


@pytest.mark.filterwarnings("default")
def test_job_gives_rank_0_the_writer_of_tensorboard(tmp_path: Path, job: JobHandle) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert job.tensorboard is None
    settings = WorkerSettings(run_dir=tmp_path, metrics=MetricsConfig(to=["tensorboard"]))
    handle = JobHandle(settings, job.group, job.stop_signal, "1.0")
    matrix = [[3.0, 1.0], [0.0, 4.0]]
    net = torch.nn.Linear(1, 1)
    trainer = Trainer(net, torch.nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=handle)
    trainer.scores.meters.reduce = lambda: {"loss": 0.5, "confusion": matrix}  # type: ignore[method-assign, dict-item]
    trainer.fit((torch.zeros(4, 1), torch.zeros(4, 1)))
    handle.tensorboard.add_histogram("weight", net.weight, handle.step)
    handle.metrics.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    assert (shown.Tags()["images"], shown.Tags()["histograms"]) == (["confusion"], ["weight"])
    assert [(image.width, image.height, image.step) for image in shown.Images("confusion")] == [(32, 32, 1)]
    assert "confusion" not in str(trainer.history)
    assert trainer.history[-1]["confusion"] == matrix


@pytest.mark.filterwarnings("default")
def test_real_wandb_writes_two_attempts_under_one_run_id(run: RunDir) -> None:
    pytest.importorskip("wandb")
    two_attempts("wandb", run, {"mode": "offline", "settings": {"silent": True}})
    name = (run.path / "wandb-id").read_text().strip()
    # `wandb sync` makes one run of all that have the same id.
    assert {path.name.rpartition("-")[2] for path in (run.path / "wandb").glob("offline-run-*")} == {name}
