"""The page of what exact means: it names tests, keys and files that there are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from clusterdp.config import tree

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "clusterdp" / "recipes" / "EXACT.md").read_text()


def test_the_tests_and_configs_that_it_names_are_there() -> None:
    named = re.findall(r"`((?:tests/train/)?test_\w+\.py|configs/\w+\.yaml)`", PAGE)
    assert len(named) >= 6
    for name in named:
        folder = ROOT if "/" in name else ROOT / "tests" / "train"
        assert (folder / name).is_file(), name


def test_the_keys_that_it_names_are_those_of_the_config() -> None:
    for part, key in re.findall(r"`(checkpoint|train|local)\.(\w+)", PAGE):
        kind = {"checkpoint": tree.CheckpointConfig, "train": tree.TrainConfig, "local": tree.LocalConfig}[part]
        assert key in {field.name for field in dataclasses.fields(kind)}, key


def test_the_other_pages_lead_to_it() -> None:
    for page in ("TECHNIQUES.md", "ANY_CODE.md"):
        assert "[EXACT.md](EXACT.md)" in (ROOT / "clusterdp" / "recipes" / page).read_text()
