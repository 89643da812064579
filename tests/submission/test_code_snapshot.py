"""What of the submit directory a job runs: a user who is wrong here runs other code than the one they submitted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterdp.config.tree import SnapshotConfig
from clusterdp.errors import ConfigError
from clusterdp.submission.snapshot.code_snapshot import take


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() or p.is_symlink()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    for name in (
        "train.py",
        "pkg/__init__.py",
        "data/big.bin",
        ".venv/pyvenv.cfg",
        ".venv/lib/x.py",
        "pkg/__pycache__/a.pyc",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x", *words], check=True, capture_output=True
    )


def test_snapshot_has_files_tracked_or_not_ignored_by_git(source: Path, tmp_path: Path) -> None:
    git(source, "init", "-q")
    (source / ".gitignore").write_text("data/\n.venv/\n__pycache__/\n")
    git(source, "add", "train.py", "pkg", ".gitignore")
    (source / "new file.py").write_text("untracked, not ignored")
    (source / "train.py").write_text("edited, not committed")
    (source / "gone.py").write_text("")
    git(source, "add", "gone.py")
    (source / "gone.py").unlink()
    taken = take(source, tmp_path / "code", SnapshotConfig(), leave_out=source / "runs/x")
    assert files(tmp_path / "code") == {"train.py", "pkg/__init__.py", ".gitignore", "new file.py"}
    assert (tmp_path / "code/train.py").read_text() == "edited, not committed"
    assert taken.files == 4


def test_snapshot_without_git_has_everything_except_venv_and_pycache(source: Path, tmp_path: Path) -> None:
    take(source, tmp_path / "code", SnapshotConfig(), leave_out=source / "runs/x")
    assert files(tmp_path / "code") == {"train.py", "pkg/__init__.py", "data/big.bin"}


@pytest.mark.parametrize("in_git", [False, True])
def test_snapshot_leaves_out_run_folders(source: Path, in_git: bool) -> None:
    if in_git:
        git(source, "init", "-q")
        (source / ".git/info/exclude").write_text(".venv/\n__pycache__/\n*.sbatch\n")
    for run, mark in {"runs/old": "job.sbatch", "elsewhere": "job.sbatch", "being made": "submits/000001"}.items():
        (source / run / mark).parent.mkdir(parents=True)
        (source / run / mark).write_text("")
        (source / run / "code/pkg").mkdir(parents=True)
        (source / run / "code/pkg/train.py").write_text("old")
    new = source / "runs/new"
    new.mkdir()
    (new / "events").write_text("")
    take(source, new / "code", SnapshotConfig(), leave_out=new)
    assert files(new / "code") == {"train.py", "pkg/__init__.py", "data/big.bin"}


def test_too_large_snapshot_is_refused_naming_its_biggest_files_and_not_copied(source: Path, tmp_path: Path) -> None:
    os.truncate(source / "data/big.bin", 3 << 20)
    with pytest.raises(ConfigError, match=r"has 3 MB in 3 files, more than 2: data/big\.bin \(3 MB\)"):
        take(source, tmp_path / "code", SnapshotConfig(max_mb=2), leave_out=tmp_path / "run")
    assert not (tmp_path / "code").exists()


def test_linked_folder_is_not_copied_or_counted_in_the_snapshot_size(source: Path, tmp_path: Path) -> None:
    os.truncate(source / "data/big.bin", 3 << 20)
    take(source, tmp_path / "code", SnapshotConfig(max_mb=2, link=["data/"]), leave_out=tmp_path / "run")
    assert (tmp_path / "code/data").readlink() == source / "data"
    for i, wrong in enumerate(["../x", "/etc", "nothing-there"]):
        with pytest.raises(ConfigError, match=r"snapshot\.link: "):
            take(source, tmp_path / f"code{i}", SnapshotConfig(link=[wrong]), leave_out=tmp_path / "run")


def test_nested_and_duplicate_snapshot_links_become_one_folder_link(source: Path, tmp_path: Path) -> None:
    take(source, tmp_path / "code", SnapshotConfig(link=["data/big.bin", "data", "data/"]), leave_out=tmp_path / "run")
    assert (tmp_path / "code/data").readlink() == source / "data"
    assert (tmp_path / "code/data/big.bin").exists()


def test_snapshot_symlinks_still_reach_their_targets(source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    (source / "inner").symlink_to("train.py")
    (source / "outer").symlink_to("../outside")
    take(source, tmp_path / "deep/er/code", SnapshotConfig(), leave_out=tmp_path / "run")
    code = tmp_path / "deep/er/code"
    assert (code / "inner").read_text() == "train.py"
    assert (code / "inner").readlink() == Path("train.py")
    assert (code / "outer").read_text() == "outside"


HELD = (
    ".env .env.local .netrc _netrc .pypirc .npmrc id_rsa id_ed25519 keys.p12 kaggle.json token.txt hf_token api_key.txt"
    " wandb_api_key .git-credentials client_secret_1.json my-service-account.json password secrets.yaml server.key"
).split()
KEPT = ".env.example tokens.txt tokenizer.json token.py secrets.py password.html key.npy id_rsa.pub ca.pem keyboard.txt"


@pytest.mark.parametrize("with_git", [False, True])
def test_files_with_secrets_are_left_out_of_the_snapshot_and_named(tmp_path: Path, with_git: bool) -> None:
    source = tmp_path / "src"
    (source / "deep").mkdir(parents=True)
    if with_git:
        git(source, "init", "-q")
    for name in [*HELD, *KEPT.split(), "deep/.env"]:
        (source / name).write_text("-----BEGIN CERTIFICATE-----\n")
    (source / "server.key").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    taken = take(source, tmp_path / "code", SnapshotConfig(link=["deep/.env"]), tmp_path / "run")
    assert sorted(taken.secret) == sorted(HELD)
    there = {str(path.relative_to(tmp_path / "code")) for path in (tmp_path / "code").rglob("*") if not path.is_dir()}
    assert there == {*KEPT.split(), "deep/.env"}
    assert "Not in it, for secrets: .env, " in str(taken).splitlines()[1].replace('"', "")
    assert (tmp_path / "code/deep/.env").is_symlink(), "who names a file gets it"
