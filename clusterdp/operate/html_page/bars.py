"""The bars of a timeline: attempts over time, as timeline.html.j2 draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterdp.operate.account.run_account import AttemptAccount
from clusterdp.wording import duration

# The kinds of spans, in their order within an attempt, and for each kind its parts of the account. Marks are lines over
# the spans.
KINDS = {
    "starting": ("startup", "restore"),
    "training": ("kept", "saves", "evaluation", "running"),
    "lost": ("lost",),
    "ending": ("shutdown",),
    "unseen": ("unseen",),
}
MEANING = {
    "queued": "waiting in the queue",
    "starting": "until its first step: imports, compilation, restore",
    "training": "steps that count, saves and evaluations",
    "lost": "steps that had to be trained again",
    "ending": "after its last step",
    "unseen": "after its last sign of life",
    "saving": "a checkpoint was committed",
    "hit": "what the drill did",
}


@dataclass(frozen=True)
class Span:
    """A part of a bar in one colour, such as start-up or saves."""

    kind: str
    left: float  # begin, in percent of the time axis
    width: float  # length, in percent of the time axis
    title: str


@dataclass(frozen=True)
class Mark:
    """A moment in a bar, drawn as a line. `left` is in percent of the whole time."""

    kind: str
    left: float
    title: str


@dataclass(frozen=True)
class Bar:
    number: int
    name: str
    spans: list[Span]
    marks: list[Mark]
    ended: str
    took: str


@dataclass(frozen=True)
class Axis:
    """A time axis: its start in seconds since 1970, and its length in seconds."""

    begin: float
    length: float

    def percent(self, when: float) -> float:
        return round(100 * (when - self.begin) / self.length, 3)

    def spans(self, queued: float | None, began: float, seconds: Mapping[str, float]) -> list[Span]:
        """Returns the spans of an attempt, one after the other. `seconds` has the duration of each kind of span."""
        found, at = [], began
        if queued is not None and queued < began:
            left = self.percent(queued)
            found.append(Span("queued", left, self.percent(began) - left, f"queued: {duration(began - queued)}"))
        for kind in KINDS:
            if (took := seconds.get(kind, 0.0)) >= 0.05:
                width = round(100 * took / self.length, 3)
                found.append(Span(kind, self.percent(at), width, f"{kind}: {duration(took)}"))
                at += took
        return found

    @property
    def ticks(self) -> list[str]:
        """The labels of the axis: durations since its start, at equal distances."""
        return [duration(self.length * quarter / 4) for quarter in range(5)]


def seconds_by_kind(attempt: AttemptAccount) -> dict[str, float]:
    return {kind: sum(getattr(attempt.parts, part) for part in parts) for kind, parts in KINDS.items()}


def meaning_of(bars: Sequence[Bar]) -> dict[str, str]:
    """Returns the legend: the meaning of each kind of span that is drawn."""
    kinds = {span.kind for bar in bars for span in bar.spans} | {mark.kind for bar in bars for mark in bar.marks}
    return {kind: text for kind, text in MEANING.items() if kind in kinds}
