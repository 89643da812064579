"""Whatever a user may call checkpoints by is found, and what is not there is said in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterdp.errors import CheckpointError, ConfigError, RunError
from clusterdp.operate.checkpoints.place import locate
from clusterdp.operate.find.run_index import remember
from tests.operate.builder import RunBuilder
from tests.operate.checkpoints.conftest import Run, Save, thing


def test_locate_finds_checkpoints_by_run_folder_name_job_id_or_latest_run(builder: RunBuilder, save: Save) -> None:
    builder.submitted("7")
    save(3, at=builder.run.checkpoints)
    remember(builder.run)
    for word in ("runs/digits", "digits", "7", None):
        place = locate(word)
        assert place.storage.url == str(builder.run.checkpoints)
        assert place.run == builder.run
        assert place.newest().step == 3
    assert locate("7@3").newest().step == 3


def test_locate_finds_checkpoints_at_the_checkpoint_url_of_the_run_config(
    builder: RunBuilder, save: Save, tmp_path: Path
) -> None:
    builder.run.config.write_text(f"checkpoint: {{url: {tmp_path}/far}}\n")
    save(3, at=tmp_path / "far")
    assert locate("digits").newest().step == 3


def test_relative_checkpoint_url_is_resolved_from_the_ranks_working_folder(builder: RunBuilder, save: Save) -> None:
    builder.run.config.write_text("checkpoint: {url: near}\n")
    builder.submitted(dir=str(builder.run.path.parent))
    save(3, at=builder.run.path.parent / "near")
    assert locate("digits").newest().step == 3
    builder.run.code.mkdir()
    save(4, at=builder.run.code / "near")
    assert locate("digits").newest().step == 4


@pytest.mark.parametrize("text", ["checkpoint: 3\n", "a: [\n", "- 1\n"])
def test_locate_refuses_a_run_with_an_invalid_config(builder: RunBuilder, text: str) -> None:
    builder.run.config.write_text(text)
    with pytest.raises(RunError, match=r"config\.yaml: is not the config of a run\. Name"):
        locate("digits")


def test_locate_finds_checkpoints_by_checkpoint_folder_step_folder_or_file_url(save: Save, folder: Path) -> None:
    save(3), save(4)
    assert locate(str(folder)).newest().step == 4
    assert locate("saved/step_00000003/").newest().step == 3
    assert locate("saved@3").newest().step == 3
    assert locate(f"file://{folder}").newest().step == 4


def test_locate_finds_the_run_of_its_checkpoints_folder_or_step_folder(builder: RunBuilder, save: Save) -> None:
    assert locate("runs/digits").run == builder.run
    save(3, at=builder.run.checkpoints)
    assert locate("runs/digits/checkpoints").run == builder.run
    assert locate("runs/digits/checkpoints/step_00000003").run == builder.run


def test_locate_finds_checkpoints_by_url_and_step(save: Save) -> None:
    save(3, at="memory://where/test")
    assert locate("memory://where/test").newest().step == 3
    assert locate("memory://where/test@3").newest().step == 3


def test_every_checkpoint_verb_takes_a_url(save: Save, cli: Run) -> None:
    url = "memory://every/verb"
    save(1, at=url), save(2, at=url)
    assert cli("ls", url)[1].startswith("memory://every/verb  2 checkpoints")
    assert cli("verify", url)[0] == 0
    assert cli("diff", url, 1, 2)[0] == 1
    assert cli("export", url, "x.pt")[0] == 0
    assert cli("prune", url, "--keep-last", 1, "--yes")[0] == 0
    assert [info.step for info in locate(url).commits()[0]] == [2]


def test_locate_chooses_a_commit_by_token_or_the_newest_of_a_step(save: Save, folder: Path) -> None:
    first, second = save(3), save(3)
    save(4)
    assert locate(f"saved@{first.token}").newest().token == first.token
    assert locate("saved@3").newest().token == second.token
    assert locate("saved", "3").newest().token == second.token
    assert len(locate("saved@3").of_which(locate("saved").commits()[0])) == 2


def test_locate_names_the_missing_run_checkpoints_or_step_in_its_error(
    save: Save, elsewhere: Path, builder: RunBuilder
) -> None:
    (elsewhere / "empty").mkdir()
    for word in ("nowhere", "empty", "999"):
        with pytest.raises(RunError, match=word):
            locate(word)
    with pytest.raises(CheckpointError, match="digits: no checkpoints yet"):
        locate("digits").commits()
    with pytest.raises(CheckpointError, match="memory://nothing: no checkpoints there"):
        locate("memory://nothing").commits()
    with pytest.raises(ConfigError, match="nope"):
        locate("nope://bucket/x")
    save(3), save(4)
    with pytest.raises(CheckpointError, match=r"saved: no checkpoint 5\. Its steps: 4, 3\."):
        locate("saved@5").newest()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_checkpoint_folder_is_an_error(save: Save, folder: Path) -> None:
    save(3)
    folder.chmod(0)
    try:
        with pytest.raises(RunError, match="Permission denied"):
            locate("saved")
    finally:
        folder.chmod(0o755)


def test_checkpoint_path_may_contain_an_at_sign(save: Save, elsewhere: Path) -> None:
    save(3, {"x": thing({}).state}, at=elsewhere / "me@2")
    assert locate("me@2").newest().step == 3
    assert locate("me@2@3").newest().step == 3
