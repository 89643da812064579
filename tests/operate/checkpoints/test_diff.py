"""`diff` is how one sees whether a run that was resumed is where the uninterrupted one is: to the last bit or not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.cli import main
from tests.operate.checkpoints.conftest import Run, Save, data_file, flip, model, thing


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Python's random numbers are part of a checkpoint; torch's are set by save()."""
    random.seed(0)


def state(**other: Any) -> dict[str, Any]:
    groups = [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}]
    return {"model": model(), "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": groups}} | other


def test_checkpoint_diff_reports_equal_states_of_two_folders_as_identical(save: Save, cli: Run) -> None:
    save(1, state(), at="a"), save(1, state(), at="b")
    code, out = cli("diff", "a", "b")
    assert code == 0
    assert out.splitlines()[-1] == "identical: 3 tensors and all that goes with them, to the last bit"


def test_checkpoint_diff_measures_a_tensor_with_one_changed_element(save: Save, cli: Run) -> None:
    other = state()
    other["model"]["big"][345_678] = 1.5
    save(100, state()), save(200, other)
    code, out = cli("diff", "saved", 100, 200)
    assert code == 1
    assert out.splitlines()[3].split() == ["max", "abs", "mean", "abs", "elements", "tensor"]
    assert out.splitlines()[4].split() == ["0.5", "8.333e-07", "1", "of", "600000", "model/big"]
    assert out.splitlines()[-1] == "1 of 3 tensors differ"
    assert "random numbers" not in out


def test_checkpoint_diff_lists_missing_tensors_and_different_shapes_and_dtypes(save: Save, cli: Run) -> None:
    save(1, {"model": {"a": torch.zeros(3), "b": torch.zeros(3), "c": torch.zeros(3), "same": torch.zeros(2)}}, at="a")
    save(
        1,
        {"model": {"b": torch.zeros(4), "c": torch.zeros(3).half(), "same": torch.zeros(2), "z": torch.zeros(1)}},
        at="b",
    )
    code, out = cli("diff", "a", "b")
    assert code == 1
    assert "\n- float32[3]  model/a\n" in out
    assert "\n- float32[3]  + float32[4]  model/b\n" in out
    assert "\n- float32[3]  + float16[3]  model/c\n" in out
    assert "\n+ float32[1]  model/z\n" in out
    assert out.endswith("\n4 of 5 tensors differ\n")
    assert "absent" not in out, "what is told of as a tensor is not told of again as a value"


def test_checkpoint_diff_lists_changed_values_by_key(save: Save, cli: Run) -> None:
    other = state(sampler={"position": 64, "nan": float("nan"), "seen": {7: True}})
    other["optimizer"]["param_groups"][0]["lr"] = 0.05
    save(1, state(sampler={"position": 32, "nan": float("nan"), "seen": {}}), at="a", meta={"epoch": 1})
    save(1, other, at="b", meta={"epoch": 2})
    code, out = cli("diff", "a", "b")
    assert code == 1
    assert "\noptimizer/param_groups/0/lr: 0.1 -> 0.05\n" in out
    assert "\nsampler/position: 32 -> 64\n" in out
    assert "\nsampler/seen/7: absent -> True\n" in out
    assert "\nmeta/epoch: 1 -> 2\n" in out
    assert "nan" not in out.replace("random", "")
    assert out.endswith("\n0 of 3 tensors differ\n")


def test_checkpoint_diff_reports_a_list_changed_to_a_tuple(save: Save, cli: Run) -> None:
    save(1, {"x": {"a": [1, 2]}}, at="a"), save(1, {"x": {"a": (1, 2)}}, at="b")
    code, out = cli("diff", "a", "b")
    assert code == 1
    assert "\nstate: the same values in other containers\n" in out


def test_checkpoint_diff_reports_changed_random_state_in_one_line(folder: Path, cli: Run) -> None:
    for seed in (1, 2):
        torch.manual_seed(seed)
        Checkpointer(folder, {"model": thing(model())}).save(seed)
    code, out = cli("diff", "saved@1", "saved@2")
    assert code == 1
    assert out.splitlines()[3:] == [
        "random numbers: all ranks would draw others",
        "",
        "0 of 2 tensors differ",
    ]
    assert cli("diff", "saved@1", "saved@2", "--only", "model")[0] == 0


def test_checkpoint_diff_reports_changed_per_rank_state(folder: Path, cli: Run) -> None:
    for step in (1, 2):
        torch.manual_seed(0)
        own = thing({"seen": step, "buffer": torch.full((5,), float(step))}, per_rank=True)
        Checkpointer(folder, {"model": thing(model()), "loader": own}).save(step)
    code, out = cli("diff", "saved@1", "saved@2")
    assert code == 1
    assert "\nrank 0/loader/seen: 1 -> 2\n" in out
    assert "\nrank 0/loader/buffer: other values\n" in out


def test_checkpoint_diff_abbreviates_a_long_list_of_changed_values(save: Save, cli: Run) -> None:
    save(1, {"x": {str(i): 0 for i in range(50)}}, at="a"), save(1, {"x": {str(i): 1 for i in range(50)}}, at="b")
    assert "\nand 30 more values\n" in cli("diff", "a", "b")[1]


def test_checkpoint_diff_of_checkpoints_sharing_files_reads_no_data(save: Save, folder: Path, cli: Run) -> None:
    first = save(1)
    Checkpointer(folder, {"model": thing(model())}).restore(1, retire_later=True)
    save(2)
    Checkpointer(folder, {"model": thing(model())}).restore(1, retire_later=True)
    again = list_checkpoints(folder)[-1]
    assert again.token != first.token
    data_file(folder, first.token).unlink()
    code, out = cli("diff", f"saved@{first.token}", f"saved@{again.token}")
    assert (code, out.splitlines()[-1]) == (0, "identical: both are made of the same files")


def test_checkpoint_diff_of_damaged_bytes_is_a_one_line_checksum_error(
    save: Save, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1), flip(data_file(folder, save(2).token))
    assert main(["checkpoint", "diff", "saved", "1", "2"]) == 5
    out, err = capsys.readouterr()
    assert "tensor" not in out
    assert "checksum" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [(["saved"], 2), (["saved", "1", "2", "3"], 2), (["saved", "1", "9"], 5), (["saved", "nowhere"], 4)],
)
def test_checkpoint_diff_with_wrong_arguments_is_a_one_line_error(
    save: Save, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    save(1)
    assert main(["checkpoint", "diff", *words]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_checkpoint_diff_only_with_a_missing_object_lists_the_existing_objects(save: Save, cli: Run) -> None:
    save(1, at="a"), save(2, at="b")
    code, out = cli("diff", "a", "b", "--only", "optimizer")
    assert code == 5 and "It has: model." in out


def test_checkpoint_diff_compares_integers_of_5000_digits(save: Save, cli: Run) -> None:
    save(1, {"model": {"n": 10**5000, "w": torch.ones(1)}}), save(2, {"model": {"n": 7, "w": torch.ones(1)}})
    code, said = cli("diff", "saved", 1, 2)
    assert code == 1
    assert "model/n: 0x" in said and said.count(" -> 7\n") == 1
