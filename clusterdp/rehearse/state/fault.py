"""describe(): what differs between two end states, by part: which values, how many, by how much. No cause is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from clusterdp.rehearse.state.compare import Difference
from clusterdp.rehearse.state.end_state import Leaf
from clusterdp.rehearse.state.optimizers import optimizers_of, prefix_of
from clusterdp.wording import counted, some_of

SHOWN = 2  # keys of each part
_NAMES = {
    "step": "the count of steps",
    "model": "the model",
    "optimizer": "the optimizer's state",
    "scheduler": "the learning rate's schedule",
    "scaler": "the GradScaler's state",
    "rng": "the random numbers' state",
    "sampler": "the position in the data",
    "metrics": "the metrics",
    "other": "other values",
}
_PLURAL = ("the metrics", "other values")
_PREFIX = "module."
NO_VALUES: Mapping[str, Leaf] = {}


def describe(differences: Sequence[Difference], values: Mapping[str, Leaf] = NO_VALUES) -> str:
    """`the model differs in 2 values (w differs in 8 of 8 elements, by at most 0.1; b 1 against 2)`, and so for each
    part; empty if nothing differs. values: of the whole state: several optimizers in it are told apart."""
    if _is_prefix(differences):
        return f"the names of the values differ by the prefix `{_PREFIX}` alone, e.g. {differences[0].key}"
    said = []
    for name, of in _groups(differences, values).items():
        of.sort(key=lambda each: len(each.key))
        named = "; ".join(f"{each.key} {each.what}" for each in of[:SHOWN])
        differ = "differ" if name in _PLURAL else "differs"
        said.append(f"{name} {differ} in {counted(len(of), 'value')} ({named}{'; ...' if len(of) > SHOWN else ''})")
    if len(said) == 1 and len({each.part for each in differences}) == 1 and differences[0].part == "metrics":
        # Of a history of 80 entries each has another key: what they are of is what tells.
        names = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", each.key) for each in differences)
        return f"nothing but metrics differs: {some_of(list(names), 3)}"
    return ", ".join(said)


def _groups(differences: Sequence[Difference], values: Mapping[str, Leaf]) -> dict[str, list[Difference]]:
    """By the name of their part, in the order of the parts; of each optimizer if there are several."""
    optimizers = optimizers_of(values)
    found: dict[str, list[Difference]] = {}
    for part, name in _NAMES.items():
        for each in differences:
            if each.part == part:
                prefix = prefix_of(each.key, optimizers) if part == "optimizer" and len(optimizers) > 1 else None
                found.setdefault(name if prefix is None else optimizers[prefix].words, []).append(each)
    return found


def _is_prefix(differences: Sequence[Difference]) -> bool:
    """Whether each missing value is there under the name with the prefix, or without it, and nothing else differs."""
    gone = [each.key for each in differences if each.what == "is missing"]
    new = [each.key for each in differences if each.what == "is new"]
    if not gone or len(gone) + len(new) != len(differences):
        return False
    plain = [sorted(key.replace(_PREFIX, "") for key in keys) for keys in (gone, new)]
    return gone != new and plain[0] == plain[1]
