"""What git ignores is not in the job: data that a user takes for granted must be named, and nothing else need be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clusterdp.config.tree import SnapshotConfig
from clusterdp.errors import ConfigError
from clusterdp.submission.snapshot import code_snapshot
from clusterdp.submission.snapshot.code_snapshot import Ignored, find_ignored, in_words, take
from tests.submission.test_code_snapshot import git

IGNORES = "*.bin\n/data\n/out/\n.venv/\nvenv/\n__pycache__/\n*.log\n/runs/\n/scratch\n.cache/\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    git(folder, "init", "-q")
    for name, size in {
        ".gitignore": 0,
        "train.py": 10,
        "sets/chars/train.bin": 3_000,
        "sets/chars/prepare.py": 10,
        "data/images/a.jpg": 4_000_000,
        "data/images/b.jpg": 4_000_000,
        "out/note.txt": 10,
        "big.log": 6_000_000,
        "small.log": 10,
        "venv/pyvenv.cfg": 1,
        "venv/lib/weights.bin": 9_000_000,
        "__pycache__/x.bin": 9_000_000,
        ".cache/x.bin": 9_000_000,
        "runs/one/submits/000001": 1,
        "runs/one/checkpoints/x.bin": 9_000_000,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
        os.truncate(folder / name, size)
    (folder / ".gitignore").write_text(IGNORES)
    return folder


def test_find_ignored_lists_large_and_data_like_files(source: Path) -> None:
    assert find_ignored(source, []) == [
        Ignored("data", 8_000_000),
        Ignored("big.log", 6_000_000),
        Ignored("sets/chars/train.bin", 3_000),
    ]


def test_find_ignored_lists_a_symlink_to_a_folder_elsewhere(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (source / "scratch").symlink_to(tmp_path / "elsewhere")
    (source / "broken.bin").symlink_to("nowhere")
    assert "scratch" in [one.name for one in find_ignored(source, [])]


def test_find_ignored_omits_files_listed_as_snapshot_links(source: Path) -> None:
    assert [one.name for one in find_ignored(source, ["data", "sets"])] == ["big.log"]


def test_find_ignored_lists_no_file_outside_git(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    assert find_ignored(tmp_path, []) == []


def test_find_ignored_looks_at_a_limited_number_of_files(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        (source / f"data/images/{i}.csv").touch()
    monkeypatch.setattr(code_snapshot, "MOST_OF_A_FOLDER", 4)
    data = next(one for one in find_ignored(source, []) if one.name == "data")
    assert data.more
    monkeypatch.setattr(code_snapshot, "MOST_FILES", 0)
    assert "data" not in [one.name for one in find_ignored(source, [])]
    monkeypatch.setattr(code_snapshot, "MOST_NAMES", 0)
    assert find_ignored(source, []) == []


def test_message_about_ignored_files_has_a_usable_snapshot_link_setting(source: Path, tmp_path: Path) -> None:
    taken = take(source, tmp_path / "code", SnapshotConfig(), leave_out=tmp_path / "run")
    assert in_words(taken.ignored) == (
        "Not in it, for git ignores it: data (8.0 MB), big.log (6.0 MB), sets/chars/train.bin (0.0 MB). "
        "If the job needs it: snapshot: {link: [data, big.log, sets/chars/train.bin]}"
    )
    links = [one.name for one in taken.ignored]
    again = take(source, tmp_path / "again", SnapshotConfig(link=links), leave_out=tmp_path / "run")
    assert again.ignored == ()
    assert (tmp_path / "again/sets/chars/train.bin").stat().st_size == 3_000


def test_message_about_ignored_files_counts_many_and_quotes_odd_names() -> None:
    many = [Ignored(f"d{i}", 9_000_000) for i in range(8)]
    assert " and 2 more. " in in_words(many)
    assert 'link: ["a, b\\u001b]"]' in in_words([Ignored("a, b\x1b]", 9_000_000, more=True)])
    assert "(over 9.0 MB)" in in_words([Ignored("d", 9_000_000, more=True)])


def test_find_ignored_lists_a_fully_ignored_folder_once(source: Path) -> None:
    (source / "corpus/big").mkdir(parents=True)
    (source / "corpus/big/train.bin").touch()
    assert [one.name for one in find_ignored(source, []) if "corpus" in one.name] == ["corpus"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("owner", r"dubious ownership.* git config --global --add safe\.directory '.*/src'"),
        ("empty", r"not a git repository.*See `git -C .*/src status`"),
        ("file", r"See `git -C .*/src status`"),
        ("head", r"not a git repository"),
        ("no git", r"No such file or directory\. Put git on PATH"),
        ("subfolder", r"src has a \.git.*not a git repository"),
    ],
)
def test_take_is_refused_if_git_fails_in_a_work_tree(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, said: str
) -> None:
    taken = source
    if broken == "owner":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    elif broken == "head":
        (source / ".git/HEAD").write_text("?")
    elif broken == "no git":
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        shutil.rmtree(source / ".git")
        (source / ".git").write_text("gitdir: /nowhere") if broken == "file" else (source / ".git").mkdir()
        taken = source / "sets" if broken == "subfolder" else source
    with pytest.raises(ConfigError, match=rf"(?s)^snapshot: .*{said}.*snapshot\.enabled=false"):
        take(taken, tmp_path / "code", SnapshotConfig(), tmp_path / "run")
    assert not (tmp_path / "code").exists()


def test_take_without_git_copies_a_folder_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(code_snapshot, "tree_of", lambda source: None)
    assert take(tmp_path / "src", tmp_path / "code", SnapshotConfig(), tmp_path / "run").files == 1
