"""What follows from what decides the order; clocks and file systems do not."""

from __future__ import annotations

from clusterdp.operate.record.event_order import in_order
from clusterdp.operate.record.run_history import read_history
from tests.operate.builder import RunBuilder


def kinds(builder: RunBuilder) -> list[tuple[object, object]]:
    return [(event["event"], event["attempt"]) for _, event in in_order(read_history(builder.run))]


def test_late_event_of_a_lost_attempt_does_not_reorder_later_attempts(builder: RunBuilder) -> None:
    """On a node that was cut off: what it tells then is told when it came."""
    first = builder.submitted().attempt()
    builder.now += 100
    first.found_to_be("lost", by="7.1")
    second = builder.attempt("7.1")
    began = builder.now
    builder.now += 1000
    builder.event("save-failed", "7.0", "rank0", step=9)
    second.finished()
    assert kinds(builder) == [
        ("submitted", "submit-7"),
        ("started", "7.0"),
        ("requeued", "7.1"),
        ("started", "7.1"),
        ("save-failed", "7.0"),
        ("finished", "7.1"),
        ("finished", "7.1"),
    ]
    assert (
        dict(zip(kinds(builder), [when for when, _ in in_order(read_history(builder.run))], strict=True))[
            ("started", "7.1")
        ]
        == began
    )


def test_resubmission_event_stands_between_its_two_attempts(builder: RunBuilder) -> None:
    builder.submitted().attempt().trained(1, 9)
    builder.event("submitted", "7.0", "batch", job="9")
    builder.now -= 2  # the clock of the next node
    builder.attempt("9.0")
    order = kinds(builder)
    assert order.index(("started", "7.0")) < order.index(("submitted", "7.0")) < order.index(("started", "9.0"))
