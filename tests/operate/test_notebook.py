"""HTML of runs and sweeps, and the lines of job.wait()."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from clusterdp.operate.notebook import progress_of, run_html, sweep_html
from clusterdp.rundir import RunDir, SweepDir
from tests.operate.builder import RunBuilder


def test_html_of_a_run_has_state_attempts_and_a_curve(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 20).finished(20)
    page = run_html(builder.run)
    text = re.sub("<[^>]*>", "", page)
    assert "done" in text.splitlines()[0]
    assert "attempt  job" in text
    svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    points = svg[0].attrib["points"].split()
    assert len(points) > 1
    assert all(0 <= float(number) <= 480 for point in points for number in point.split(","))


def test_html_of_a_run_without_metrics_has_no_curve(builder: RunBuilder) -> None:
    assert "<svg" not in run_html(builder.submitted().run)


def test_html_escapes_the_names_of_a_run(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").failed(cause="<script>\x1b[31m\0\u202e")
    page = run_html(builder.run)
    assert "<script>" not in page
    assert not set("\x1b\0\u202e") & set(page)
    assert "&lt;script&gt;" in page


def test_html_of_a_missing_sweep_is_its_error(builder: RunBuilder) -> None:
    assert sweep_html(SweepDir(builder.run.path / "gone")).startswith("<pre>")


def test_progress_lines_of_a_run_are_printed_once(builder: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    builder.submitted()
    show = progress_of(RunDir(builder.run.path))
    show()
    show()
    assert capsys.readouterr().out.count("submitted: job 7") == 1
    builder.attempt("7.0").trained(1, 20).finished(20)
    for _ in range(3):
        show()
    assert "finished at step 20" in capsys.readouterr().out
