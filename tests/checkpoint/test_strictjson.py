"""JSON as we write it, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterdp.checkpoint.format import strictjson


class Key(str):
    """Counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_duplicate_json_key_is_found_in_one_pass() -> None:
    pairs: list[tuple[Any, int]] = [(Key(f"k{i}"), i) for i in range(2000)]
    Key.compared = 0
    with pytest.raises(ValueError, match="it has the key 'k1999' twice"):
        strictjson._each_key_once([*pairs, (Key("k1999"), 0)])
    assert Key.compared < 100


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', "[NaN]", "[Infinity]", "[1e999]"])
def test_strict_json_refuses_duplicate_keys_nan_and_infinity(text: str) -> None:
    json.loads(text)
    with pytest.raises(ValueError, match="it has the"):
        strictjson.loads(text.encode())
