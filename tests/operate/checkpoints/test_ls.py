"""`ls` is what people look at before they delete or go back: it must not leave out or invent a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from clusterdp.checkpoint import Checkpointer
from clusterdp.wording import size
from tests.operate.builder import RunBuilder
from tests.operate.checkpoints.conftest import Run, Save, flip, manifest_file, model, thing


def test_checkpoint_ls_lists_the_newest_commit_first_not_the_highest_step(save: Save, cli: Run) -> None:
    later = save(20, attempt="7.0")
    newest = save(10, attempt="7.1")
    code, out = cli("ls", "saved")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"saved  2 checkpoints, {size(later.bytes + newest.bytes)}"
    assert lines[2].split() == ["step", "age", "committed", "size", "ranks", "attempt", "token"]
    assert lines[3].startswith("* 10") and lines[3].endswith(f"1      7.1      {newest.token}")
    assert lines[4].startswith("  20") and lines[4].endswith(f"1      7.0      {later.token}")
    assert all(len(line) <= 80 for line in lines[:5])


def test_checkpoint_ls_shows_the_phase_of_each_checkpoint(save: Save, folder: Path, cli: Run) -> None:
    save(1)
    checkpointer = Checkpointer(folder, {"model": thing(model(2))}, keep_last=99)
    checkpointer.begin("finetune", {"model": thing(model(2))})
    checkpointer.save(2)
    lines = cli("ls", "saved")[1].splitlines()
    assert lines[2].split()[-2:] == ["token", "phase"]
    assert [line.split()[-1] for line in lines[3:5]] == ["finetune", "-"]
    listed = json.loads(cli("ls", "saved", "--json")[1])["checkpoints"]
    assert [each["phase"] for each in listed] == ["finetune", ""]


def test_checkpoint_ls_names_a_damaged_manifest_beside_good_checkpoints(save: Save, folder: Path, cli: Run) -> None:
    good = save(1)
    bad = manifest_file(folder, save(2).token)
    flip(bad, 60)
    code, out = cli("ls", "saved")
    assert code == 0
    assert f"1 checkpoint, {size(good.bytes)}, 1 damaged manifest\n" in out
    assert "\n* 1 " in out
    last = out.splitlines()[-1]
    assert last.startswith(f"damaged  step_00000002/{bad.name}: its first line does not match its digest")


def test_checkpoint_ls_json_lists_all_checkpoints_and_damaged_manifests(save: Save, folder: Path, cli: Run) -> None:
    first, second = save(1, attempt="7.0"), save(2)
    flip(manifest_file(folder, save(3).token), 60)
    code, out = cli("ls", "saved", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["url"] == str(folder) and data["run"] is None
    assert [(c["step"], c["token"], c["newest"]) for c in data["checkpoints"]] == [
        (2, second.token, True),
        (1, first.token, False),
    ]
    assert (
        data["checkpoints"][1].items() >= {"attempt": "7.0", "world_size": 1, "order": 1, "bytes": first.bytes}.items()
    )
    assert data["checkpoints"][1]["manifest"] == f"step_00000001/MANIFEST.{first.token}.json"
    assert [damage["name"].split("/")[0] for damage in data["damaged"]] == ["step_00000003"]


def test_checkpoint_ls_without_checkpoints_prints_empty_json_or_a_text_error(builder: RunBuilder, cli: Run) -> None:
    code, out = cli("ls", "digits", "--json")
    assert code == 0
    assert json.loads(out)["checkpoints"] == []
    assert cli("ls", "digits") == (
        5,
        "clusterdp: runs/digits: no checkpoints yet. Look at the log, or name another place.\n",
    )


def test_checkpoint_ls_counts_the_size_of_shared_files_once(save: Save, folder: Path, cli: Run) -> None:
    total = save(1).bytes + save(2).bytes
    Checkpointer(folder, {"model": thing(model())}).restore(1, retire_later=True)
    assert f"3 checkpoints, {size(total)}" in cli("ls", "saved")[1]
