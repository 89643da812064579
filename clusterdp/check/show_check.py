"""`clusterdp check`: prints the findings as text or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from clusterdp.check.finding import LEVELS, Finding, Level
from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.output.terminal import terminal_columns
from clusterdp.wording import counted

if TYPE_CHECKING:
    from clusterdp.check.check import Checked

COLOURS = {"error": "red", "warning": "yellow", "hint": "cyan"}
MOST_COLUMNS = 120


def show_check(checked: Checked, out: TextIO, as_json: bool = False) -> None:
    if as_json:
        record = {
            "name": checked.name,
            "fails": checked.fails,
            "asked_slurm": checked.asked,
            "findings": [asdict(finding) for finding in checked.findings],
            "notes": checked.notes,
        }
        out.write(json.dumps(record, indent=2) + "\n")
        return
    width = min(terminal_columns(), MOST_COLUMNS)
    colour = Colour(out)
    for level in LEVELS:
        found = [finding for finding in checked.findings if finding.level == level]
        if found:
            out.write(colour(COLOURS[level], f"{level}s" if len(found) > 1 else level) + "\n")
            out.write("\n".join(line for each in found for line in lines_of(each, width, colour)) + "\n\n")
    for note in checked.notes:
        out.write("\n".join(textwrap.wrap(note, width, subsequent_indent="  ")) + "\n")
    said = textwrap.wrap(verdict(checked.findings, checked.asked), width)
    out.write("\n".join(colour("bold", line) for line in said) + "\n")


def lines_of(finding: Finding, width: int, colour: Colour) -> Iterator[str]:
    place = f"{finding.where}: " if finding.where else ""
    first, *more = textwrap.wrap(f"{place}{finding.key}: {finding.what}.", width - 2, subsequent_indent="  ")
    yield f"  {first}"
    yield from (f"  {line}" for line in more)
    why = textwrap.wrap(f"{finding.why[0].upper()}{finding.why[1:]}.", width - 4)
    yield from (f"    {colour('dim', line)}" for line in why)
    yield from textwrap.wrap(f"-> {finding.remedy}", width, initial_indent="    ", subsequent_indent="       ")


def verdict(findings: Sequence[Finding], asked: bool) -> str:
    counts: Mapping[Level, int] = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    others = " and ".join(counted(counts[level], level) for level in LEVELS[1:] if counts[level])
    if counts["error"]:
        return f"{counted(counts['error'], 'error')}: this would fail." + (f" Besides, {others}." if others else "")
    without = "" if asked else ", as far as is known without Slurm"
    return f"Nothing found that would fail{without}." + (f" There {_are(counts)} {others}." if others else "")


def _are(counts: Mapping[Level, int]) -> str:
    first = counts["warning"] or counts["hint"]
    return "is" if first == 1 else "are"
