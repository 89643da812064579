"""LogSilence: a program that prints nothing and uses no CPU time hangs; a listing that fails says nothing about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterdp.batch.act.log_silence import HangFinding, LogSilence
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.nodes.placement import Placement
from clusterdp.batch.processes.children import Children

IDLE = "n1 7 S 100 sleep\n"
BUSY = "n1 7 R 900 sleep\n"
FAILED = ""


def findings(folder: Path, listings: list[str], looks: int) -> list[HangFinding]:
    """Looks each second, with a limit of 4 s."""
    left = iter(listings)
    children = cast(Children, SimpleNamespace(run=lambda words, err: SimpleNamespace(said=next(left))))
    placement = cast(Placement, SimpleNamespace(nodes=[], size=1))
    silence = LogSilence(Rules(nodes=1, silence_s=4), str(folder), children, placement)
    return [found for _ in range(looks) if (found := silence.look()) is not None]


def test_equal_listings_in_silence_report_a_hang(tmp_path: Path) -> None:
    (hang,) = findings(tmp_path, [IDLE, IDLE], 5)
    assert (hang.hangs, hang.ends, hang.processes) == (True, False, IDLE)
    assert hang.reason == "no output for 4 s, and no process has used CPU time in the last 2 s"


@pytest.mark.parametrize("listings", [[IDLE, BUSY], [IDLE, IDLE + "n1 8 R 1 new\n"]])
def test_busy_process_prevents_a_hang_report(tmp_path: Path, listings: list[str]) -> None:
    assert findings(tmp_path, listings, 5) == []


def test_failed_listing_neither_ends_nor_begins_a_hang_report(tmp_path: Path) -> None:
    found = findings(tmp_path, [IDLE, FAILED, IDLE, FAILED, IDLE, BUSY], 11)
    assert [each.hangs for each in found] == [True, False]
