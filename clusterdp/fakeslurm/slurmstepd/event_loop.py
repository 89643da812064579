"""A small event loop with one thread, for descriptors and timers."""

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
        """Calls `action` when the descriptor is readable (with `write`, also when it is writable). The action replaces
        an earlier action for the descriptor.
        """
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        self._register(descriptor, events, action)

    def watch_room(self, descriptor: int, action: Action) -> None:
        """Calls `action` when the descriptor is writable."""
        self._register(descriptor, selectors.EVENT_WRITE, action)

    def _register(self, descriptor: int, events: int, action: Action) -> None:
        known = self._select.get_map().get(descriptor)
        if known is None:
            self._select.register(descriptor, events, action)
        elif known.events != events or known.data is not action:
            self._select.modify(descriptor, events, action)

    def unwatch(self, descriptor: int) -> None:
        """Stops watching the descriptor. Does nothing if the descriptor is not watched."""
        if descriptor in self._select.get_map():
            self._select.unregister(descriptor)

    def after(self, seconds: float, action: Action) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def turn(self, at_most_s: float | None = None) -> None:
        """Waits for the next event, and calls the actions of all ready descriptors and due timers."""
        now = time.monotonic()
        waits = [when - now for when, _ in self._timers]
        if at_most_s is not None:
            waits.append(at_most_s)
        for key, _ in self._select.select(max(min(waits), 0) if waits else None):
            if self._select.get_map().get(key.fd) is not None:  # an earlier action may have unwatched this descriptor
                key.data()
        now = time.monotonic()
        due = [action for when, action in self._timers if when <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for action in due:
            action()
