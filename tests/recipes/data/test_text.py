"""Characters as numbers. A window that leaks into the held-out text would flatter every loss."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.recipes.data import bundled, text


def test_a_text_comes_back_from_its_numbers() -> None:
    read = text.Text("hello, wörld")
    assert read.alphabet == " ,dehlorwö"
    assert read.decode(read.codes.tolist()) == "hello, wörld"


def test_each_window_is_followed_by_the_next_character() -> None:
    read = text.Text("abcdefghij" * 10)
    train, held_out = read.split(length=2)
    assert [read.decode(part.tolist()) for part in train[3]] == ["gh", "hi"]
    assert (len(train), len(held_out)) == (44, 4)
    last = train[len(train) - 1][1][-1]
    assert read.decode([int(last)]) == "i", "the last tenth is not trained on"


def test_too_little_text_says_how_much_it_wants() -> None:
    with pytest.raises(ConfigError, match=r"100 characters are too few for windows of 8\. Give 320 or more"):
        text.Text("abcdefghij" * 10).split(length=8)


def test_pythons_manual_is_at_hand() -> None:
    manual = text.read_text(None)
    assert len(manual) > 300_000
    assert 'The "assert" statement' in manual


def test_any_file_of_text_will_do(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("grüße", encoding="utf-8")
    assert text.read_text(tmp_path / "mine.txt") == "grüße"


def test_what_is_no_text_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(ConfigError, match=r"mine\.txt: byte 2 is not UTF-8"):
        text.read_text(tmp_path / "mine.txt")
    with pytest.raises(ConfigError, match="No such file"):
        text.read_text(tmp_path / "none.txt")
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match=r"params\.path=FILE"):
        text.read_text(None)


def test_the_diabetes_table_is_whole_and_standardised() -> None:
    features, target = bundled.diabetes()
    assert features.shape == (442, 10) and target.shape == (442,)
    torch.testing.assert_close(features.std(0), torch.ones(10))
    torch.testing.assert_close(target.mean(), torch.zeros(()), atol=1e-6, rtol=0)


def test_a_missing_table_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"nothing\.csv.*Install scikit-learn again"):
        bundled.table("nothing.csv")
