"""describe(): what differs between two end states, by part: which values, how many, by how much. No cause is named."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterdp.rehearse.state.compare import Difference
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
_PREFIX = "module."


def describe(differences: Sequence[Difference]) -> str:
    """`the model differs in 2 values (w differs in 8 of 8 elements, by at most 0.1; b 1 against 2)`, and so for each
    part; empty if nothing differs."""
    if _is_prefix(differences):
        return f"the names of the values differ by the prefix `{_PREFIX}` alone, e.g. {differences[0].key}"
    said = []
    for part, name in _NAMES.items():
        of = [each for each in differences if each.part == part]
        if of:
            of.sort(key=lambda each: len(each.key))
            named = "; ".join(f"{each.key} {each.what}" for each in of[:SHOWN])
            said.append(f"{name} differs in {counted(len(of), 'value')} ({named}{'; ...' if len(of) > SHOWN else ''})")
    if len(said) == 1 and len({each.part for each in differences}) == 1 and differences[0].part == "metrics":
        # Of a history of 80 entries each has another key: what they are of is what tells.
        names = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", each.key) for each in differences)
        return f"nothing but metrics differs: {some_of(list(names), 3)}"
    return ", ".join(said)


def _is_prefix(differences: Sequence[Difference]) -> bool:
    """Whether each missing value is there under the name with the prefix, or without it, and nothing else differs."""
    gone = [each.key for each in differences if each.what == "is missing"]
    new = [each.key for each in differences if each.what == "is new"]
    if not gone or len(gone) + len(new) != len(differences):
        return False
    plain = [sorted(key.replace(_PREFIX, "") for key in keys) for keys in (gone, new)]
    return gone != new and plain[0] == plain[1]
