"""Curves for the page: thinned without hiding a peak, and within a budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterdp.operate.compare.curves import Curve, Line, RunCurves, thin
from clusterdp.operate.report.page import MOST_CHARTS, PARTS, chart_data

NONE = Curve(Line(np.empty(0, np.int64), np.empty(0)))


def line(values: list[float], first: int = 1) -> Line:
    return Line(np.arange(first, first + len(values)), np.asarray(values, float))


def run(**curves: Curve) -> RunCurves:
    return RunCurves(curves, NONE, ())


@settings(max_examples=40)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=300), st.integers(1, 40))
def test_thinned_curve_keeps_its_ends_and_extremes_and_only_real_points(values: list[int], parts: int) -> None:
    whole = line([float(value) for value in values])
    few = thin(whole, 1, len(values), parts)
    assert len(few) <= 2 * parts + 2
    assert (few.steps[0], few.steps[-1]) == (1, len(values))
    assert (few.values.min(), few.values.max()) == (min(values), max(values))
    assert all(values[step - 1] == value for step, value in zip(few.steps, few.values, strict=True))


def test_chart_of_a_long_curve_keeps_its_peak_and_notes_the_thinning() -> None:
    values = np.zeros(100_000)
    values[54_321] = 7.0
    charts = chart_data([run(loss=Curve(line(values.tolist())))])
    drawn = charts.data["charts"][0]["lines"][0]
    assert dict(zip(drawn["x"], drawn["y"], strict=True))[54_322] == 7.0
    assert len(drawn["x"]) <= 2 * PARTS[0] + 2
    assert "100,000 points" in charts.notes[0]


def test_short_curve_is_drawn_unthinned() -> None:
    charts = chart_data([run(loss=Curve(line([3.0, 2.0, 1.0])))])
    assert charts.data["charts"] == [{"name": "loss", "lines": [{"run": 0, "x": [1, 2, 3], "y": [3.0, 2.0, 1.0]}]}]
    assert charts.notes == []


def test_repeated_steps_are_a_separate_line_drawn_before_the_kept_curve() -> None:
    curve = Curve(line([1.0, 1.0]), again=((1, line([5.0], first=2)),))
    lines = chart_data([run(loss=curve), run(loss=Curve(line([2.0, 2.0])))]).data["charts"][0]["lines"]
    assert [(each["run"], each.get("again")) for each in lines] == [(0, 1), (0, None), (1, None)]


def test_chart_data_limits_charts_and_points() -> None:
    curve = Curve(line(np.random.default_rng(0).random(500).tolist()))
    charts = chart_data([run(**{f"m{i}": curve for i in range(MOST_CHARTS + 9)}) for _ in range(5)])
    assert charts.names[:3] == ["m0", "m1", "m2"]
    points = sum(len(each["x"]) for chart in charts.data["charts"] for each in chart["lines"])
    assert points <= 320_000
    assert len(charts.names) == MOST_CHARTS
    assert "9 more metrics are not drawn" in charts.notes[-1]
