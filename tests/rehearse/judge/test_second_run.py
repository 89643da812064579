from __future__ import annotations

from pathlib import Path

from clusterdp.check.program import CodePlace, ProgramText, read_python_file
from clusterdp.rehearse.judge.second_run import (
    beside_another,
    left_outside,
    not_apart,
    shared_files,
    went_on,
)
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.run_spec import Facts

FOLDER = Path("/home/me/out")


def test_port_shared_by_two_runs_is_named_with_its_code_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text('import os\nos.environ["MASTER_PORT"] = "29500"\n')
    text = read_python_file(program, tmp_path)
    found = beside_another(Facts(ports=[29500]), Facts(ports=[29500, 1]), FOLDER, text)
    assert found and found.diagnosis.startswith("a port is hard-coded: 29500 (train.py:2).")


def test_files_shared_by_two_runs_are_reported_except_caches_and_scratch_files() -> None:
    mine, other = Facts(ports=[1], written={"/data/a.pt": 1}), Facts(ports=[2], written={"/data/b.pt": 1})
    assert beside_another(mine, other, FOLDER, None) is None
    scratch = Facts(written={"/tmp/scratch-of-mine.bin": 1, f"{FOLDER}/undisturbed/code/a.pt": 1})
    assert beside_another(scratch, scratch, FOLDER, None) is None
    caches = Facts(written={"/home/me/.cache/metrics/x.arrow": 1, "/data/x.lock": 1})
    assert beside_another(caches, caches, FOLDER, None) is None, "they are made to be shared"
    shared = Facts(written={"/data/a.pt": 1})
    found = beside_another(shared, shared, FOLDER, None)
    assert found and found.said == "undisturbed runs wrote /data/a.pt"
    assert found.diagnosis.startswith("an absolute path is in the code: /data/a.pt.")


def test_ranks_writing_the_same_checkpoint_are_named() -> None:
    path = "checkpoints/step_1.pt"
    ranks = Facts(files={path: FileUse(by=[0, 3]), f"{path}.tmp": FileUse(by=[0])})
    found = shared_files(ranks, ProgramText(saves=[CodePlace(Path("/p/train.py"), 7, "")]))
    assert found and found.diagnosis.startswith(
        "several ranks write one file (train.py:7): ranks 0, 3 had checkpoints/step_1.pt open for writing"
    )
    in_turn = Facts(files={path: FileUse(by=[0], written=[1.0, 1.5]), "last.pt": FileUse(written=[1.0, 9.0])})
    assert shared_files(in_turn, None) is None


def test_second_undisturbed_run_resuming_from_the_first_is_detected_by_its_steps() -> None:
    assert went_on([1, 2, 3, 9], [9]) == "the second undisturbed run began at step 9, and the first at 1"
    assert went_on([1, 2, 3], []) == "the second undisturbed run did no step"
    assert went_on([1, 2, 9], [3, 4]) == "", "a bar may be drawn later another time"
    assert went_on([], []) == "" and went_on([5], [5]) == ""
    found = beside_another(Facts(written={"/data/a.pt": 1}), Facts(written={"/data/a.pt": 1}), FOLDER, None)
    said = not_apart("the second undisturbed run did no step", found).diagnosis
    assert said.startswith(
        "the second undisturbed run did no step, though it had a folder of its own: an absolute path"
    )
    assert "files outside of its run folder" in not_apart("it ended as failed", None).diagnosis


def test_remaining_checkpoints_outside_the_run_folder_are_listed(tmp_path: Path) -> None:
    left = tmp_path / "kept.pt"
    left.write_bytes(b"x")
    written = {str(left): 1, f"{tmp_path}/gone.pt": 1, f"{tmp_path}/notes.txt": 1, f"{FOLDER}/undisturbed/code/a.pt": 1}
    assert left_outside(Facts(written=written), FOLDER) == [str(left)]
