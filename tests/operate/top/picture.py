"""Draws the picture of README: `python -m tests.operate.top.picture docs/top.svg`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from docs.tools.capture import FORMAT
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue
from tests.operate.project import NOW, WAITING, make_project
from tests.operate.top.pilot import Player, play

SIZE = (112, 16)


def make_runs(folder: Path) -> None:
    """The runs of the tests' project, and three with all records of their time."""
    (folder / "bin").mkdir()
    queue = FakeQueue(folder / "bin")
    os.environ.update(PATH=f"{folder}/bin:/usr/bin:/bin", XDG_STATE_HOME=str(folder / "state"), TZ="UTC")
    time.tzset()
    make_project(folder, queue)
    for number, (name, steps) in enumerate((("gpt2-20231114-233320-41ca", 3000), ("vit-20231114-235320-b0d7", 800))):
        job = str(123470 + number)
        run = RunBuilder(folder / "runs" / name).passes(7060 - steps / 10).submitted(job)
        first = run.attempt(f"{job}.0", nodes="n[3-6]").trained(1, steps, 4000)
        first.spent(steps, startup=12, restore=1, steps=steps / 10).stopped(steps).requeued("preempted")
        again = run.passes(40).attempt(f"{job}.1", nodes="n[3-6]").restored(steps).trained(steps + 1, steps + 400, 4000)
        again.measured(step=steps + 400, total=4000, val_loss=3.21 - steps / 2000).spent(
            steps + 400, startup=9, restore=2, steps=40
        )
    queue.answers(
        "123459|RUNNING|None|n[1-2]", "123460|PENDING|Resources|", "7_2|RUNNING|None|n3", "7_3|PENDING|Priority|",
        "123470|RUNNING|None|n[3-6]", "123471|RUNNING|None|n[3-6]",
    )  # fmt: skip


async def drawn(player: Player) -> str:
    await player.press("j", "j")
    assert WAITING in player.text
    console = Console(record=True, width=SIZE[0], file=open(os.devnull, "w"))  # noqa: SIM115
    lines = [Text.assemble(*((each.text, each.style or "") for each in strip)) for strip in player.strips]
    console.print(Text("\n").join(lines))
    return console.export_svg(title="", code_format=FORMAT, unique_id="top")


def main(target: str) -> None:
    path = Path(target).absolute()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        make_runs(Path(name))
        time.time = lambda: NOW  # type: ignore[assignment]
        path.write_text(play(drawn, size=SIZE))


if __name__ == "__main__":
    main(*sys.argv[1:])
