"""What a run measured, over its attempts: which attempt's value of a step counts."""

from __future__ import annotations

import numpy as np

from clusterdp.operate.compare.curves import Curve, RunCurves, read_curves
from clusterdp.operate.record.run_history import read_history
from tests.operate.builder import RunBuilder


def curves(builder: RunBuilder) -> RunCurves:
    return read_curves(read_history(builder.run))


def pairs(curve: Curve) -> list[tuple[int, float]]:
    return list(zip(curve.kept.steps.tolist(), curve.kept.values.tolist(), strict=True))


def test_curves_take_the_later_attempts_value_of_a_repeated_step(builder: RunBuilder) -> None:
    first = builder.submitted().attempt("7.0")
    for step in (1, 2, 3, 4):
        first.measured(step=step, loss=1.0)
    first.saved(2).requeued("crash")
    second = builder.attempt("7.1").restored(2)
    for step in (3, 4, 5):
        second.measured(step=step, loss=2.0)
    found = curves(builder)
    assert pairs(found.metrics["loss"]) == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    ((number, again),) = found.metrics["loss"].again
    assert (number, again.steps.tolist(), again.values.tolist()) == (1, [3, 4], [1.0, 1.0])
    assert found.resumed == ((2, 2),)


def test_curves_of_a_run_restarted_from_scratch_drop_earlier_values(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").measured(step=1, loss=1.0).measured(step=2, loss=1.0).requeued("crash")
    builder.attempt("7.1").measured(step=1, loss=2.0)
    assert pairs(curves(builder).metrics["loss"]) == [(1, 2.0)]


def test_curves_after_resume_from_an_older_step_drop_values_of_later_steps(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 4).saved(4).finished(4)
    builder.submitted("8", from_step=2)
    builder.attempt("8.0").restored(2).measured(step=3, loss=9.0)
    assert [step for step, _ in pairs(curves(builder).metrics["loss"])] == [1, 2, 3]


def test_curves_omit_non_numeric_values_and_list_non_finite_steps(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt("7.0").measured(step=1, loss=1.0, digest="ab", done=True)
    attempt.measured(step=2, loss="nan").measured(step=3, loss="inf").measured(step=4, loss=0.5)
    found = curves(builder).metrics
    assert pairs(found["loss"]) == [(1, 1.0), (4, 0.5)]
    assert found["loss"].not_finite == (2, 3)
    assert set(found) == {"loss"}


def test_metric_recorded_without_a_step_belongs_to_the_preceding_step(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").measured(step=7, loss=1.0).measured(accuracy=0.9)
    assert pairs(curves(builder).metrics["accuracy"]) == [(7, 0.9)]


def test_curves_skip_truncated_and_malformed_metric_lines(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").measured(step=1, loss=1.0)
    with (builder.run.metrics / "7.0.jsonl").open("a") as file:
        file.write('{"time": 5.0, "step"\n\n[1]\n{"step":2,"loss":0.5}\n{"step":3,"loss":0.2')
    assert pairs(curves(builder).metrics["loss"]) == [(1, 1.0), (2, 0.5)]


def test_speed_curve_is_computed_from_the_step_times(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 50)  # ten steps a second
    assert np.allclose(curves(builder).speed.kept.values, 10.0, atol=1e-3)
