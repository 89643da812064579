"""Plays `clusterdp top` without a terminal, and reads its screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from textual.pilot import Pilot
from textual.strip import Strip

from clusterdp.operate.top.app import Top
from clusterdp.operate.top.source import LocalSource, Source

T = TypeVar("T")
SMALL, LARGE = (80, 24), (200, 60)


class Player:
    """Presses keys, and waits for what the screen shows."""

    def __init__(self, app: Top, pilot: Pilot[None]):
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        await self.pilot.press(*({" ": "space", "-": "minus"}.get(letter, letter) for letter in text))

    async def until(self, look: Callable[[], T], limit_s: float = 60.0) -> T:
        deadline = asyncio.get_running_loop().time() + limit_s
        while not (seen := look()):
            assert asyncio.get_running_loop().time() < deadline, self.text
            await self.pilot.pause(0.01)
        return seen

    async def sees(self, words: str) -> str:
        """The screen, as soon as it has these words, on however many lines."""
        return await self.until(lambda: self.text if words in " ".join(self.text.split()) else "")

    @property
    def strips(self) -> list[Strip]:
        return self.app.screen._compositor.render_strips()

    @property
    def text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self.strips).rstrip() + "\n"

    @property
    def is_read(self) -> bool:
        """Whether all parts of the screen are there."""
        return "reading ..." not in self.text and not self.app._message_queue.qsize()

    @property
    def names(self) -> list[str]:
        """The first word of each run in the table."""
        return [row.path.rpartition("/")[2] for row in self.app.table.shown]

    @property
    def selected(self) -> str:
        return self.app.table.row.path.rpartition("/")[2] if self.app.table.row else ""


def play(
    story: Callable[[Player], Awaitable[T]],
    *,
    sources: Sequence[Source] = (),
    size: tuple[int, int] = SMALL,
    ask_s: float = 1e6,
) -> T:
    """What the story returns. Without `ask_s`, rows are read once."""

    async def run() -> T:
        app = Top(sources or [LocalSource(ask_s=ask_s)], ask_s)
        async with app.run_test(size=size) as pilot:
            player = Player(app, pilot)
            if not sources:
                await player.until(lambda: "reading" not in player.text)
            return await story(player)

    return asyncio.run(run())
