"""Writes docs/rehearsed.md from the results of `make rehearsals`: `python -m tests.rehearse.rehearsed`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from clusterdp.rehearse.drills.table import NAMES
from clusterdp.rehearse.judge.verdict import PASSED, SHORT
from tests.rehearse.programs.correct.table import CORRECT
from tests.rehearse.programs.foreign import FOREIGN
from tests.rehearse.rehearsals import FOREIGN_KIND, RIGHT, Row, kept

PAGE = Path(__file__).resolve().parents[2] / "docs/rehearsed.md"
IN_A_TABLE = 4
WIDTH = 120
LONGEST = 200  # limit of the characters of an explanation
HEAD = """\
# Programs of others, rehearsed

This page has the results of `clusterdp rehearse` for programs that do not use clusterdp, and shows which faults each
program survives. The models are tiny and run on a CPU, but a program's lost state and lost steps do not depend on that.
A drill passes if the job came back by itself and ended in the state of the undisturbed run. If the job was warned, it
must also have done no step again. `make rehearsals` makes the runs and then this page. The explanations are those of
`rehearse`.
"""
UNMODIFIED = """\
## Programs as their authors have published them

Each program is unmodified, at the named commit. Other data replaces the data that would have to be downloaded.
"""
LIBRARIES = """\
## Libraries

These programs of `tests/rehearse/programs/correct` use a library in such a way that nothing is lost. A program saves
under another name and renames, or resumes only from a whole checkpoint. Each program also saves at SIGTERM.
"""


def page(rows: Sequence[Row]) -> str:
    order = [*FOREIGN]
    foreign = sorted((row for row in rows if row.kind == FOREIGN_KIND), key=lambda row: order.index(row.program))
    libraries = [row for row in rows if row.kind == RIGHT and CORRECT[row.program].needs]
    parts = [HEAD]
    for about, part in ((UNMODIFIED, foreign), (LIBRARIES, libraries)):
        if part:
            parts += [about, *_tables(part)]
            parts += [_section(name, [row for row in part if row.program == name]) for name in _programs(part)]
    return "\n".join(parts)


def _programs(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.program for row in rows))


def _title(name: str) -> str:
    return FOREIGN[name].title if name in FOREIGN else name


def _tables(rows: Sequence[Row]) -> list[str]:
    """Returns tables with at most IN_A_TABLE programs each, and a line for each drill."""
    programs = _programs(rows)
    verdicts = {(row.program, row.drill): SHORT.get(row.verdict, row.verdict) for row in rows}
    tables = []
    for begin in range(0, len(programs), IN_A_TABLE):
        some = programs[begin : begin + IN_A_TABLE]
        drills = [drill for drill in NAMES if any((name, drill) in verdicts for name in some)]
        lines = [["drill", *map(_title, some)], ["---"] * (len(some) + 1)]
        lines += [[drill, *(verdicts.get((name, drill), "") for name in some)] for drill in drills]
        tables.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return tables


def _section(name: str, rows: Sequence[Row]) -> str:
    """Returns versions, job and note of a program, and the explanation of each drill that it has not passed."""
    parts = [f"### {_title(name)}\n"]
    foreign = FOREIGN.get(name)
    made = f"{foreign.repository} at {foreign.commit}, " if foreign and foreign.repository else ""
    parts.append(_wrapped(f"{made}{rows[0].versions}.{f' {foreign.note}' if foreign else ''}"))
    if foreign:
        parts.append(f"```yaml\n{foreign.job}```\n")
    words: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict != PASSED:
            words.setdefault(f"{SHORT.get(row.verdict, row.verdict)}: {_short(row.words)}", []).append(row.drill)
    parts.append("".join(f"- {', '.join(drills)}: {said}\n" for said, drills in words.items()))
    return "\n".join(filter(None, parts))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _short(text: str) -> str:
    text = text.replace("|", "\\|")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def main() -> int:
    PAGE.write_text(page(kept()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
