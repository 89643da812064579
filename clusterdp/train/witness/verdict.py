"""Compares what two attempts did after the same save, and says in words what differs first. No torch.

An account of an attempt has numbers, one row for each rank, with a label for each column, in the order of time:

    state 0 model        the part `model` of the state at the save
    machine 0            the type of the machine
    batch 1, streams 1   the batch of the first step after it, and the random streams when it was handed out
    micro-batch 1 5      with a global batch, micro-batch 5 of the first step, on the rank that had it
    state 3 model        the part after the third step
    generators 1         the generators that the loader holds

A number of 0 is not known, and is compared with nothing.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterdp.wording import ranges, some_of

SAME, ROUNDING, OTHER = "same", "rounding", "other"
CLOSE = {"float64": 1e-5, "float32": 1e-5}  # relative difference of losses that is rounding; of 16 bits 1e-2
NUMBER = "number"  # instead of float64: a float in a plain dict, which may be a clock
CLOSE_STATE = 100  # times as much: a state after some steps differs more than a loss
FOLLOWS_RANKS = "something in the step follows the number of ranks, or is not restored"
_FORMATS = {"float64": "d", NUMBER: "d", "float32": "f", "float16": "e", "bfloat16": "H"}
Marks = Mapping[str, Sequence[Any]]  # name -> Mark: (checksum, first bytes, dtype)


@dataclass
class Account:
    """What the attempt `attempt` did after the save `token`. values: what rank 0 has logged in each step. details: rank
    0's marks of the state, by number of steps since the save. generators: rank 0's, likewise.
    numbers: those among the attributes of the loader's parts. loader: what is known of it; with another one, nothing is
    compared. by_tree: whether its bits are those of any number of ranks (train.exact: any_ranks)."""

    token: str
    step: int
    attempt: str
    labels: list[str]
    ranks: list[list[int]]
    values: list[dict[str, float]] = field(default_factory=list)
    details: Mapping[str, Marks] = field(default_factory=dict)
    generators: dict[str, dict[str, int]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)
    by_tree: bool = False


@dataclass(frozen=True)
class Verdict:
    kind: str  # SAME, ROUNDING (nothing else shows that the training differs) or OTHER
    last: int  # the last step of the run that was compared
    compared: list[str]  # in words
    differs: str = ""  # a sentence; empty if nothing differs
    numbers: str = ""  # a sentence about numbers of the loader that differ, which may mean nothing


def compare(then: Account, now: Account) -> Verdict:
    if len(then.ranks) != len(now.ranks):
        return _across(then, now)
    columns = {label: [row[at] for row in then.ranks] for at, label in enumerate(then.labels)}
    pairs = {
        label: [(was, row[at]) for was, row in zip(columns[label], now.ranks, strict=True)]
        for at, label in enumerate(now.labels)
        if label in columns
    }
    moved = any(was and here and was != here for was, here in pairs.pop("machine 0", ()))
    known = [label for label, each in pairs.items() if any(was and here for was, here in each)]
    last = now.step + max((int(label.split()[1]) for label in known), default=0)
    found = Verdict(SAME, last, _compared(known, now), numbers=_numbers_apart(then.numbers, now.numbers))
    for label in known:
        ranks = [rank for rank, (was, here) in enumerate(pairs[label]) if was and here and was != here]
        if ranks and found.kind != OTHER:
            kind, differs = _judged(label, ranks, then, now, known, moved)
            found = replace(found, kind=kind, differs=differs) if kind == OTHER or not found.differs else found
    return found


def _across(then: Account, now: Account) -> Verdict:
    """Compares attempts on different numbers of ranks: the micro-batches are the same, and losses but for rounding. By
    sums of a tree, the losses are the same, and the tensors of the state."""
    was, here = (
        {label: max(row[at] for row in each.ranks) for at, label in enumerate(each.labels)} for each in (then, now)
    )
    known = [label for label in here if label.startswith("micro-batch ") and here[label] and was.get(label)]
    last = now.step + max((int(label.split()[1]) for label in known), default=0)
    found = Verdict(SAME, last, _compared(known, now))
    if (other := next((label for label in known if was[label] != here[label]), None)) is not None:
        return replace(found, kind=OTHER, differs=_other_micro_batch(other, now))
    by_tree = then.by_tree and now.by_tree and was.get("machine 0") == here.get("machine 0")
    if by_tree and (moments := [after for after in now.details if after in then.details]):
        tensors = _tensors_apart(then.details[moments[-1]], now.details[moments[-1]])
        last = max(last, now.step + int(moments[-1]))
        found = replace(found, last=last, compared=[*found.compared, f"{len(tensors)} tensors of the state"])
        if (apart := [name for name, is_apart in tensors.items() if is_apart]) and not _first_value(then, now):
            named = f"after step {last}, {some_of(apart, 3)} {'differ' if len(apart) > 1 else 'differs'}"
            return replace(found, kind=OTHER, differs=f"{named}: {FOLLOWS_RANKS}.")
    if (first := _first_value(then, now)) is None:
        return found
    at, name, before, value = first
    if _near([before], [value], 1e-2) and not by_tree:
        differs = f"the losses are the same but for rounding, on {len(now.ranks)} ranks instead of {len(then.ranks)}."
        return replace(found, kind=ROUNDING, differs=differs)
    logged = f"{name} {value:.9g} in step {at}, where it was {before:.9g} with the same samples and random numbers"
    why = FOLLOWS_RANKS if by_tree else "the step uses something that is not restored"
    return replace(found, kind=OTHER, differs=f"{logged}: {why}.")


def _tensors_apart(then: Marks, now: Marks) -> dict[str, bool]:
    """Returns whether the tensors that both have differ, by name."""
    shared = [name for name in now if name in then and now[name][2] not in ("", NUMBER)]
    return {name: then[name][0] != now[name][0] for name in shared}


def _other_micro_batch(label: str, now: Account) -> str:
    _, after, number = label.split()
    return f"step {now.step + int(after)} got another micro-batch {number}: the loader does not give what it gave."


def _numbers_apart(then: Mapping[str, float], now: Mapping[str, float]) -> str:
    apart = [name for name in now if name in then and then[name] != now[name]]
    told = [f"{name} is {now[name]:g}, where it was {then[name]:g}" for name in apart]
    return f"beside what counts, {some_of(told, 3)}" if told else ""


def _compared(labels: Sequence[str], now: Account) -> list[str]:
    kinds = {label.split()[0] for label in labels}
    known = {"batch": "batch", "micro-batch": "micro-batches", "streams": "random numbers"}
    words = [word for kind, word in known.items() if kind in kinds]
    if "state" in kinds:
        words.append(f"{max(map(len, now.details.values()), default=0)} values of the state")
    return words + (["the loader's generators"] if "generators" in kinds else [])


def _judged(
    label: str, ranks: Sequence[int], then: Account, now: Account, known: Sequence[str], moved: bool
) -> tuple[str, str]:
    """Returns the kind of the first difference, and a sentence about it. known: the labels that are compared. moved:
    whether a rank is on another type of machine, whose kernels round otherwise."""
    kind, after, *part = label.split(maxsplit=2)
    step, where = now.step + int(after), "" if len(now.ranks) == 1 else f" on rank {ranges(ranks)[0]}"
    if len(ranks) > 1:
        where = " on all ranks" if len(ranks) == len(now.ranks) else f" on ranks {some_of(ranges(ranks))}"
    if kind == "micro-batch":
        return OTHER, _other_micro_batch(label, now)
    if kind == "batch":
        return OTHER, f"step {step} got another batch{where}: the loader does not give what it gave."
    if kind == "streams":
        got = "got the same batch and" if f"batch {after}" in known else "began with"
        return OTHER, f"step {step} {got} other random numbers{where}: something else draws from them."
    if kind == "generators":
        drawn = now.generators[after]
        names = [name for name, mark in then.generators[after].items() if drawn.get(name, mark) != mark]
        held = f"{some_of(names)} of the loader" if names else "a generator of the loader"
        return OTHER, f"at step {step}, {held} has drawn other numbers{where}: the next epoch is another one."
    was, here = then.details.get(after, {}), now.details.get(after, {})
    names = _different(was, here) if 0 in ranks else []
    numbers = [name for name in names if name in was and name in here and was[name][2] == here[name][2] == NUMBER]
    names = [name for name in names if name not in numbers] + numbers
    named = some_of(names, 3) if names else part[0]
    if after == "0":
        return OTHER, f"the state of step {step} is not the one that was saved, in {named}{where}."
    if names and names == numbers:
        return ROUNDING, f"after step {step} the state is the same but for numbers such as of a clock, {named}{where}."
    if names and _is_rounding(names[: len(names) - len(numbers)], then, now, after, moved):
        elsewhere = ", on another type of machine" if moved else ""
        return ROUNDING, f"after step {step} the state is the same but for rounding, in {named}{elsewhere}."
    later = f"after step {step}, {named} {'differ' if len(names) > 1 else 'differs'}{where}"
    if (first := _first_value(then, now)) is None:
        return OTHER, f"{later}, with the same batches and random numbers: part of it is not restored."
    at, name, before, value = first
    logged = f"{name} {value:.9g} in step {at}, where it was {before:.9g} with the same batch and random numbers"
    return OTHER, f"{logged}: the step uses something that is not restored; {later}."


def _different(then: Marks, now: Marks) -> list[str]:
    """Returns the names of what differs: what only one has, then the options of optimizers, which no step changes by
    itself, then words and counts, then what differs most."""
    shared = [name for name in now if name in then and then[name][0] != now[name][0]]
    order = sorted(shared, key=lambda name: ("/param_groups/" not in name, -_distance(then[name], now[name])))
    return sorted({*then} ^ {*now}) + order


def _first_value(then: Account, now: Account) -> tuple[int, str, float, float] | None:
    """Returns (step, name, value then, value now) of the first loss that differs; None if none does."""
    for at, (was, here) in enumerate(zip(then.values, now.values, strict=False), now.step + 1):
        for name in was.keys() & here.keys():
            if "loss" in name and was[name] != here[name] and not math.isnan(was[name] + here[name]):
                return at, name, was[name], here[name]
    return None


def _is_rounding(names: Sequence[str], then: Account, now: Account, after: str, moved: bool) -> bool:
    """Whether all that differ are floating-point tensors, and as little as kernels differ that add in any order. Such
    kernels change a loss or the optimizer's moments, too. What is equal in all values that are kept may differ by much
    in the others."""
    was, here = then.details[after], now.details[after]
    moments = [name for name in here if re.search(r"/state/\d+/", name)]
    unmoved = moments and not {*moments} & {*names} and _first_value(then, now) is None
    if not moved and (unmoved or all(was[name][1] == here[name][1] for name in {*names} & {*was} & {*here})):
        return False
    least = 0.0
    for name in names:
        if name not in was or name not in here or was[name][2] not in _FORMATS or was[name][2] != here[name][2]:
            return False
        if "/param_groups/" in name:  # a rate is computed on the host, always in the same order
            return False
        least = max(least, close := 1e-2 if moved else CLOSE.get(was[name][2], 1e-2))
        if not _near(_numbers(was[name]), _numbers(here[name]), close * CLOSE_STATE):
            return False
    pairs = zip(then.values, now.values, strict=False)
    return all(_near([a[name]], [b[name]], least) for a, b in pairs for name in a if "loss" in name and name in b)


def _numbers(mark: Sequence[Any]) -> list[float]:
    data, kind = mark[1], _FORMATS[mark[2]]
    if kind == "H":  # bfloat16 is the upper half of a float32
        data, kind = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2)), "f"
    return [value for (value,) in struct.iter_unpack(f"<{kind}", data)]


def _distance(was: Sequence[Any], here: Sequence[Any]) -> float:
    """Returns by how much two marks differ, as a share of their values; infinite for what has no such values."""
    if not was[1] or was[2] not in _FORMATS or was[2] != here[2]:
        return math.inf
    pairs = [*zip(_numbers(was), _numbers(here), strict=False)]
    largest = max((max(abs(a), abs(b)) for a, b in pairs), default=0.0)
    return max((abs(a - b) / largest for a, b in pairs if a != b), default=0.0)


def _near(was: Sequence[float], here: Sequence[float], close: float) -> bool:
    largest = max(map(abs, (*was, *here)), default=0.0)
    return all(
        abs(a - b) <= close * largest or (math.isnan(a) and math.isnan(b)) for a, b in zip(was, here, strict=False)
    )
