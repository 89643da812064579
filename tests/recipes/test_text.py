"""Characters as numbers. A window that leaks into the held-out text would flatter every loss."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.recipes import bundled
from configs import characters as text


def test_character_codes_decode_to_the_original_text() -> None:
    read = text.Text("hello, wörld")
    assert read.alphabet == " ,dehlorwö"
    assert read.decode(read.codes.tolist()) == "hello, wörld"


def test_training_windows_target_the_next_character_and_exclude_the_held_out_text() -> None:
    read = text.Text("abcdefghij" * 10)
    train, held_out = read.split(length=2)
    assert [read.decode(part.tolist()) for part in train[3]] == ["gh", "hi"]
    assert (len(train), len(held_out)) == (44, 4)
    last = train[len(train) - 1][1][-1]
    assert read.decode([int(last)]) == "i", "the last tenth is not trained on"


def test_too_short_text_error_names_the_required_length() -> None:
    with pytest.raises(ConfigError, match=r"100 characters are too few for windows of 8\. Give 320 or more"):
        text.Text("abcdefghij" * 10).split(length=8)


def test_read_text_without_a_path_returns_pythons_manual() -> None:
    manual = text.read_text(None)
    assert len(manual) > 300_000
    assert 'The "assert" statement' in manual


def test_read_text_reads_a_utf8_file(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("grüße", encoding="utf-8")
    assert text.read_text(tmp_path / "mine.txt") == "grüße"


def test_read_text_fails_on_non_utf8_file_missing_file_and_missing_manual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(ConfigError, match=r"mine\.txt: byte 2 is not UTF-8"):
        text.read_text(tmp_path / "mine.txt")
    with pytest.raises(ConfigError, match="No such file"):
        text.read_text(tmp_path / "none.txt")
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match=r"params\.path=FILE"):
        text.read_text(None)


def test_diabetes_table_is_complete_and_standardised() -> None:
    features, target = bundled.diabetes()
    assert features.shape == (442, 10) and target.shape == (442,)
    torch.testing.assert_close(features.std(0), torch.ones(10))
    torch.testing.assert_close(target.mean(), torch.zeros(()), atol=1e-6, rtol=0)


def test_missing_bundled_table_error_advises_to_reinstall_scikit_learn() -> None:
    with pytest.raises(ConfigError, match=r"nothing\.csv.*Install scikit-learn again"):
        bundled.table("nothing.csv")
