"""The table of `clusterdp list` at the widths of terminals."""

from __future__ import annotations

import io
from typing import Any

import pytest

from clusterdp.operate.listing.columns import table, wide
from clusterdp.operate.output.formatting import Colour
from tests.operate.builder import T0

PLAIN = Colour(io.StringIO())
NOTE = "baseline, with the learning rate of last week"


def run(**values: Any) -> dict[str, Any]:
    """A summary."""
    return {
        "run": "/p/runs/x",
        "state": "done",
        "as_recorded": False,
        "elements": None,
        "why": "",
        "attempt_number": 1,
        "step": 400,
        "total": 400,
        "metrics": {"loss": 0.01234, "test_accuracy": 0.981},
        "left_s": None,
        "goodput": 0.973,
        "saved_at": T0 - 7200,
        "note": "",
        **values,
    }


RUNS = {
    "digits-20260131-235959-1f2e": run(state="running", attempt_number=12, step=240, left_s=3723.0, note=NOTE),
    "digits-20260131-235959-77aa": run(),
    "lenet-3": run(
        state="waiting", as_recorded=True, attempt_number=None, step=None, metrics={}, goodput=None, saved_at=None
    ),
    "../elsewhere/runs/a-sweep/17": run(state="gave-up", step=17, total=None, metrics={"lr": 0.1}),
}
SCREENS = {
    120: """\
run                           state     attempt  step     measured             left   goodput  saved    note
digits-20260131-235959-1f2e   running   12       240/400  test_accuracy 0.981  1h02m  97 %     2 h ago  baseline, wit...
digits-20260131-235959-77aa   done      1        400/400  test_accuracy 0.981         97 %     2 h ago
lenet-3                       waiting?
../elsewhere/runs/a-sweep/17  gave-up   1        17       lr 0.1                      97 %     2 h ago
""",
    80: """\
run                           state     step     left   saved    note
digits-20260131-235959-1f2e   running   240/400  1h02m  2 h ago  baseline, wi...
digits-20260131-235959-77aa   done      400/400         2 h ago
lenet-3                       waiting?
../elsewhere/runs/a-sweep/17  gave-up   17              2 h ago
""",
    40: """\
run                           state
digits-20260131-235959-1f2e   running
digits-20260131-235959-77aa   done
lenet-3                       waiting?
../elsewhere/runs/a-sweep/17  gave-up
""",
}


@pytest.mark.parametrize("width", SCREENS)
def test_list_table_at_widths_40_80_and_120_equals_its_golden_text(width: int) -> None:
    lines = table(list(RUNS.values()), list(RUNS), T0, width, PLAIN)
    assert "\n".join(lines) + "\n" == SCREENS[width]


@pytest.mark.parametrize("width", [20, 21, 33, 39, 40, 57, 80, 99, 119, 300])
def test_list_lines_with_odd_run_names_are_printable_and_fit_the_terminal(width: int) -> None:
    names = ["运行-" * 20, "e\u0301" * 60, "x" * 100, "\x1b[2J\x1b]0;t\x07\u202e" * 9 + "y", "two\nlines"]
    odd = [run(note=name, state="cancelled", metrics={name: 0.1}, left_s=1.0) for name in names]
    lines = table(odd, names, T0, width, PLAIN)
    assert len(lines) == 1 + len(names)
    assert max(map(wide, lines)) <= width
    assert not [line for line in lines if not line.isprintable()]


def test_list_table_omits_columns_without_values() -> None:
    (head, _) = table([run(attempt_number=None, goodput=None, saved_at=None)], ["a"], T0, 300, PLAIN)
    assert head.split() == ["run", "state", "step", "measured"]


def test_state_colours_do_not_shift_the_columns_of_the_list_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = table(list(RUNS.values()), list(RUNS), T0, 80, Colour(Terminal()))
    assert "\x1b[36mrunning\x1b[0m   240/400" in coloured[1]
