"""What a user sees: the screens of list, why, status and sweep, on terminals of three widths."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.sweep.elements import read_sweep, status_table
from clusterdp.rundir import SweepDir
from tests.operate.conftest import FakeQueue
from tests.operate.golden import check_golden, in_pipe, on_terminal, plain, readable
from tests.operate.project import FAILED, NOW, RUNNING, WAITING, make_project

GOLDEN = Path(__file__).parent / "screens"

# What is copied as a whole: a command, the path of a log, and its lines.
WHOLE = re.compile(r" +`?clusterdp |  \| |  all of it: clusterdp |\S+:$")

SCREENS = {
    "list": ["list"],
    "why-waiting": ["why", WAITING],
    "why-failed": ["why", FAILED],
    "status-running": ["status", RUNNING],
    "status-failed": ["status", FAILED],
    "sweep": ["sweep", "rates"],
    "status-sweep": ["status", "rates"],
}


@pytest.fixture
def project(elsewhere: Path, queue: FakeQueue) -> Path:
    make_project(elsewhere, queue)
    return elsewhere


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_terminal_screen_of_each_verb_equals_its_golden_file(name: str, columns: int, project: Path) -> None:
    screen = on_terminal(SCREENS[name], columns, NOW)
    check_golden(GOLDEN / f"{name}-{columns}.txt", readable(screen))
    broken = [line for line in plain(screen).splitlines() if len(line) > columns and not WHOLE.match(line)]
    assert not broken, "the terminal would break these lines anywhere"


@pytest.mark.parametrize("name", SCREENS)
def test_screen_with_no_color_has_the_text_of_the_coloured_one(name: str, project: Path) -> None:
    coloured = on_terminal(SCREENS[name], 80, NOW)
    assert "\x1b" in coloured
    assert on_terminal(SCREENS[name], 80, NOW, NO_COLOR="1") == plain(coloured)


@pytest.mark.parametrize("name", ["list", "sweep", "status-failed"])
def test_piped_output_equals_its_golden_file(name: str, project: Path) -> None:
    check_golden(GOLDEN / f"{name}-pipe.txt", in_pipe(SCREENS[name], NOW))


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_sweep_table_omits_value_columns_to_fit_the_terminal(columns: int, elsewhere: Path) -> None:
    folder = SweepDir(elsewhere / "runs" / "wide")
    folder.path.mkdir(parents=True)
    values = {"params.lr": 0.1, "params.schedule": "cosine-with-restarts", "params.batch_size": 512, "train.seed": 3}
    folder.write_table("digits", [values, values])
    for number in range(2):
        folder.element(number).path.mkdir()
    head, *rows = status_table(read_sweep(folder).elements, Colour(io.StringIO()), width=columns)
    assert max(map(len, (head, *rows))) <= columns
    assert {"#", "lr", "state"} <= set(head.split())
