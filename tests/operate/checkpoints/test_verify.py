"""`verify` reads every byte: what it calls good is good, and what is bad is named with its file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from clusterdp.checkpoint import Checkpointer
from clusterdp.storage import LocalStorage
from clusterdp.wording import size
from tests.operate.checkpoints.conftest import Run, Save, data_file, flip, manifest_file, model, thing


def test_verify_reports_good_checkpoints_and_verified_bytes(save: Save, cli: Run) -> None:
    total = save(1).bytes + save(2).bytes
    code, out = cli("verify", "saved")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[:2]] == [["good", "step", "2"], ["good", "step", "1"]]
    assert out.splitlines()[2] == f"2 of 2 good; {size(total)} verified"


@pytest.mark.parametrize("at", [0, 4095, 5000, 1 << 20, 2_000_000, -1])
def test_verify_finds_a_flipped_bit_at_any_position(save: Save, folder: Path, cli: Run, at: int) -> None:
    save(1)
    bad = data_file(folder, save(2).token)
    flip(bad, at)
    code, out = cli("verify", "saved")
    assert code == 1
    assert out.splitlines()[0].startswith("bad     step 2")
    assert f"step_00000002/{bad.name}: the checksum of bytes" in out.splitlines()[1]
    assert out.splitlines()[2].startswith("good    step 1")
    assert out.splitlines()[3].startswith("1 of 2 good")


def test_verify_names_each_truncated_missing_and_corrupted_file(save: Save, folder: Path, cli: Run) -> None:
    token = save(1).token
    os.truncate(data_file(folder, token), 100)
    (folder / f"step_00000001/{token}-r0000.json").unlink()
    flip(folder / f"step_00000001/{token}-r0000.local.safetensors")
    code, out = cli("verify", "saved")
    assert code == 1
    assert "has 100 bytes instead of" in out
    assert "r0000.json: the file is missing" in out
    assert "local.safetensors: the checksum of bytes" in out


def test_verify_reports_damage_in_either_line_of_a_manifest(save: Save, folder: Path, cli: Run) -> None:
    head, body = manifest_file(folder, save(1).token), manifest_file(folder, save(2).token)
    flip(head, 60)
    flip(body, -30)
    code, out = cli("verify", "saved")
    assert code == 1
    assert "first line does not match" in out and "second line does not match" in out
    assert "0 of 2 good" in out
    assert cli("verify", "saved", "--step", 1)[0] == 1
    assert cli("verify", "saved@2")[0] == 1


def test_verify_step_checks_only_the_named_step(save: Save, folder: Path, cli: Run) -> None:
    flip(data_file(folder, save(1).token))
    total = save(2).bytes
    code, out = cli("verify", "saved", "--step", 2)
    assert (code, out.splitlines()[-1]) == (0, f"1 of 1 good; {size(total)} verified")
    assert cli("verify", "saved", "--step", 1)[0] == 1
    assert cli("verify", "saved", "--step", 3)[0] == 5


def test_verify_reports_an_unreadable_file_as_unread_not_bad(
    save: Save, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = save(1).token
    read = LocalStorage.open

    def refuse(self: LocalStorage, name: str, *span: int) -> Any:
        if name.endswith(".local.safetensors"):
            raise OSError(errno.EIO, "Input/output error", name)
        return read(self, name, *span)

    monkeypatch.setattr(LocalStorage, "open", refuse)
    code, out = cli("verify", "saved")
    assert code == 1
    assert out.splitlines()[0].startswith("unread  step 1")
    assert f"{token}-r0000.local.safetensors" in out.splitlines()[1] and "Input/output error" in out.splitlines()[1]
    assert out.count(".safetensors: ") == 1, "the others are read nevertheless, and are good"


def test_verify_reads_shared_files_once_and_reports_each_affected_checkpoint(
    save: Save, folder: Path, cli: Run
) -> None:
    total = save(1).bytes + save(2).bytes
    Checkpointer(folder, {"model": thing(model())}).restore(1, retire_later=True)
    code, out = cli("verify", "saved")
    assert code == 0
    assert out.count("good    step 1") == 2
    assert f"3 of 3 good; {size(total)} verified" in out
    flip(data_file(folder, out.splitlines()[2].split()[-1]))
    code, out = cli("verify", "saved")
    assert code == 1
    assert out.count("bad     step 1") == 2, "one pair of files, two checkpoints that need it"
