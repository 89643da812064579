"""Which steps of each attempt are in the run's state, and which had to be done again."""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.operate.run_history import RunHistory

ALL = 1 << 63


def kept_up_to(history: RunHistory) -> list[int]:
    """For each attempt the last step that a later attempt went on from. While nothing is known of that, all count."""
    submitted = (event for event in history.events if event.get("event") == "submitted")
    went_back = {str(event.get("job")) for event in submitted if event.get("from_step") is not None}
    kept = _newest(history)
    found = []
    for attempt in reversed(history.attempts):
        found.append(kept)
        first_of_job = next(a for a in history.attempts if a.job == attempt.job) is attempt
        if first_of_job and attempt.job in went_back:  # by the user's wish
            kept = ALL
        elif attempt.restored is not None:
            kept = min(kept, attempt.restored)
        elif attempt.first_step is not None:  # it trained, and had restored nothing
            kept = 0
    return found[::-1]


def _newest(history: RunHistory) -> int:
    """For the newest attempt that trained: what is not saved when it has ended is lost."""
    last = next((a for a in reversed(history.attempts) if a.last_step is not None), None)
    if last is None or last.cause in ("", "done"):
        return ALL
    return history.saved[0] if history.saved else 0


def seconds_at(points: Sequence[tuple[int, float]], step: int) -> float:
    """The seconds that steps took up to `step`, between two `points` (step, seconds) as if all took as long."""
    before = max((point for point in points if point[0] <= step), default=(0, 0.0))
    after = min((point for point in points if point[0] > step), default=before)
    share = (step - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return before[1] + share * max(0.0, after[1] - before[1])
