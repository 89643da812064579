from __future__ import annotations

import json
import time

import pytest

from clusterdp.errors import ConfigError
from clusterdp.operate.listing.filters import Filters, make_filters

NOW = time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))


def takes(filters: Filters, **values: str) -> bool:
    summary = {"name": "digits", "run": "/p/runs/digits-77aa", "state": "done", "why": "", "note": "", **values}
    return filters.take(json.dumps(summary, separators=(",", ":")), lambda path: "../p/runs/digits-77aa")


def test_state_filter_matches_listed_states_and_rejects_unknown_ones_with_a_hint() -> None:
    filters = make_filters("Running, gave-up", None, None, None, NOW)
    assert takes(filters, state="running")
    assert takes(filters, state="gave-up")
    assert not takes(filters, state="done", note='"state":"running"')
    for word, said in (
        ("runing", "Did you mean running"),
        ("x", "Write waiting, running, .* or cancelled"),
        ("", "Write"),
    ):
        with pytest.raises(ConfigError, match=f"--state {word}: is not a state.*{said}"):
            make_filters(word, None, None, None, NOW)


@pytest.mark.parametrize(
    ("glob", "taken"),
    [("digits*", True), ("digits", True), ("*77aa", True), ("../p/*", True), ("Digits", False), ("77aa", False)],
)
def test_name_filter_matches_folder_name_config_name_and_typed_path(glob: str, taken: bool) -> None:
    assert takes(make_filters(None, glob, None, None, NOW)) == taken


@pytest.mark.parametrize(
    ("tag", "taken"), [("baseline", True), ("LR", True), ("base", False), ("lr,", False), ("0.1", True)]
)
def test_tag_filter_matches_whole_words_of_the_note_in_any_case(tag: str, taken: bool) -> None:
    assert takes(make_filters(None, None, tag, None, NOW), note="Baseline, lr 0.1") == taken


def test_state_filter_reads_words_of_slurm_and_of_habit() -> None:
    assert make_filters("pending,finished,error", None, None, None, 0.0).states == {"waiting", "done", "failed"}
