"""The elements of a sweep as a table: their values, how each stands, and how many are in which state."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from clusterdp.operate.output.formatting import Colour, number
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.sweep.elements import ElementStatus
from clusterdp.wording import some_of, table

MANY = 40  # rows; --csv and --json have all
WIDE = 24  # characters of one value


def values_table(rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """The values alone: what would run."""
    keys = list(next(iter(rows.values()), {}))
    shown = list(rows.items())[:MANY]
    lines = table([("#", *short(keys)), *((str(n), *(_value(row[key]) for key in keys)) for n, row in shown)])
    return [*lines, *_more(len(rows))]


def status_table(
    elements: Sequence[ElementStatus], colour: Colour, metrics: Sequence[str] = (), width: int = sys.maxsize
) -> list[str]:
    """A row for each element, in the order given. metrics: those that have a column. In a narrower terminal there are
    fewer of them, then no steps, then fewer of the values."""
    if not elements:
        return []
    keys = list(elements[0].values)
    heads = ["#", *short(keys), "state", "step", *metrics]
    rows: list[tuple[str, ...]] = [tuple(heads)]
    for each in elements[:MANY]:
        history = each.history
        step = "-" if history.step is None else f"{history.step}" + (f"/{history.total}" if history.total else "")
        measured = (number(history.metrics[name]) if name in history.metrics else "-" for name in metrics)
        values = (_value(each.values.get(key)) for key in keys)
        rows.append((str(each.number), *values, each.status.state.value, step, *measured))
    state = len(keys) + 1
    shown, first, rest = [*range(len(heads))], [*range(1, state)], [*range(state + 2, len(heads))]
    gives_way = [*first[:1], *rest[:1], *first[1:], state + 1, *rest[1:]]  # the last first
    while max(map(len, lines := table([[row[at] for at in shown] for row in rows]))) > width and gives_way:
        shown.remove(gives_way.pop())
    head, *lines = lines
    return [colour("dim", head), *lines, *(colour("dim", line) for line in _more(len(elements)))]


def counts(elements: Sequence[ElementStatus], colour: Colour) -> str:
    """`3 waiting, 2 running, 34 done, 1 failed`."""
    found = Counter(each.status.state for each in elements)
    words = [colour(state.colour, f"{found[state]} {state.value}") for state in RunState if found[state]]
    return ", ".join(words)


def short(keys: Sequence[str]) -> list[str]:
    """`lr` for `params.lr`, where no other key has that name."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else number(value) if isinstance(value, (int, float)) else json.dumps(value)
    text = "true" if value is True else "false" if value is False else text
    return text if len(text) <= WIDE else f"{text[: WIDE - 3]}..."


def _more(count: int) -> list[str]:
    return [f"{count - MANY} more: clusterdp sweep --csv or --json has all"] if count > MANY else []


def listed(elements: Sequence[ElementStatus]) -> str:
    """`3, 7 and 12 more`."""
    return some_of([str(each.number) for each in elements])
