"""The page of what exact means: it names tests, keys and files that there are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from clusterdp.config import tree

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "exact.md").read_text()


def test_exact_page_names_only_existing_tests_and_configs() -> None:
    named = re.findall(r"`((?:tests/train/)?test_\w+\.py|configs/\w+\.yaml)`", PAGE)
    assert len(named) >= 6
    for name in named:
        folder = ROOT if "/" in name else ROOT / "tests" / "train"
        assert (folder / name).is_file(), name


def test_exact_page_names_only_existing_config_keys() -> None:
    for part, key in re.findall(r"`(checkpoint|train|local)\.(\w+)", PAGE):
        kind = {"checkpoint": tree.CheckpointConfig, "train": tree.TrainConfig, "local": tree.LocalConfig}[part]
        assert key in {field.name for field in dataclasses.fields(kind)}, key


def test_pages_of_techniques_and_eleven_lines_link_to_the_exact_page() -> None:
    for page in ("techniques.md", "eleven_lines.md"):
        assert "(exact.md)" in (ROOT / "docs" / page).read_text()
