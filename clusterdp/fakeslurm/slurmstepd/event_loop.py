"""A small event loop with one thread: descriptors to watch, actions to take later."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

Action = Callable[[], None]


class EventLoop:
    def __init__(self) -> None:
        self._select = selectors.DefaultSelector()
        self._timers: list[tuple[float, Action]] = []

    def watch(self, descriptor: int, action: Action, *, write: bool = False) -> None:
        """Call `action` when there is something to read (with `write`, also when there is room to write). Replaces an
        earlier action.
        """
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        self._register(descriptor, events, action)

    def watch_room(self, descriptor: int, action: Action) -> None:
        """Call `action` when there is room to write."""
        self._register(descriptor, selectors.EVENT_WRITE, action)

    def _register(self, descriptor: int, events: int, action: Action) -> None:
        known = self._select.get_map().get(descriptor)
        if known is None:
            self._select.register(descriptor, events, action)
        elif known.events != events or known.data is not action:
            self._select.modify(descriptor, events, action)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; does nothing if the descriptor is not watched."""
        if descriptor in self._select.get_map():
            self._select.unregister(descriptor)

    def after(self, seconds: float, action: Action) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def turn(self, at_most_s: float | None = None) -> None:
        """Wait for the next event and run all actions that are due."""
        now = time.monotonic()
        waits = [when - now for when, _ in self._timers]
        if at_most_s is not None:
            waits.append(at_most_s)
        for key, _ in self._select.select(max(min(waits), 0) if waits else None):
            if (
                self._select.get_map().get(key.fd) is not None
            ):  # an action before this one may have dropped the descriptor
                key.data()
        now = time.monotonic()
        due = [action for when, action in self._timers if when <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for action in due:
            action()
