"""What is shown while a rehearsal runs."""

from __future__ import annotations

import io

import pytest

from clusterdp.rehearse.show.screen import Lines, LiveTable, Row, Rows

LONG = "checkpoints are saved in place: one was half written, and is what it resumes from: the end of the words"


def rows() -> Rows:
    return Rows({name: Row(name, f"about {name}") for name in ("undisturbed", "preempted-in-evaluation", "node-lost")})


@pytest.mark.parametrize("width", [60, 110])
def test_live_table_truncates_rows_to_one_line_until_the_end(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    table = LiveTable(out, rows())
    table.begins("undisturbed", "")
    table.ended("undisturbed", "failed", LONG, 82.0)
    table.begins("node-lost", "")
    table.is_at("node-lost", 12, "waits for step 80")
    table._console.print(table._table())
    lines = out.getvalue().splitlines()
    assert len(lines) == 4 and all(len(line) <= width for line in lines)
    assert "failed" in lines[0] and "…" in lines[0] and lines[0].endswith("1:22")
    assert "runs" in lines[2] and "step 12, waits" in lines[2]
    table.__exit__()
    table._console.print(table._table())
    words = " ".join(out.getvalue().replace("1:22", "").split())
    assert words.endswith("0 s") and LONG.split()[-1] in words and "…" not in words.partition("0 s")[2]


def test_pipe_output_has_one_line_per_finished_run() -> None:
    out = io.StringIO()
    with Lines(out, rows()) as lines:
        lines.begins("undisturbed", "")
        lines.is_at("undisturbed", 3, "trains")
        lines.ended("undisturbed", "", "60 steps", 40.0)
        lines.ended("node-lost", "failed", LONG, 82.0)
    assert out.getvalue() == (
        f"undisturbed              done    60 steps  (40 s)\nnode-lost                FAILED  {LONG}  (1 min 22 s)\n"
    )
