"""Which ranks are behind, from what the watchers of all ranks have noted, and how that is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterdp.train.hang.decision import Behind, find_behind, full_text, sentence
from clusterdp.train.hang.note import Note
from clusterdp.train.hang.page import (
    AGREEMENT,
    BACKWARD,
    DATA,
    END,
    EVALUATION,
    LONG,
    METRICS,
    PROGRAM,
    SAVE,
    STEP_BODY,
    phase_name,
)

COLLECTIVE = "/lib/torch/distributed/distributed_c10d.py"


def note(rank: int, step: int = 120, order: int = BACKWARD, frames: tuple[str, ...] = (), **more: Any) -> Note:
    phase = phase_name(order, first=False)
    stack = "Thread 0x0000000000000001 (most recent call first):\n"
    stack += "".join(f'  File "{frame.partition(":")[0]}", line {frame.partition(":")[2]} in f\n' for frame in frames)
    limit = 1620.0 if phase in LONG else 300.0
    facts = {
        "pid": 100 + rank,
        "silent_s": 301.0,
        "limit_s": limit,
        "hang_after_s": 300.0,
        "round": 1,
        "state": "S",
        "thread": 1,
    }
    return Note(
        **{**facts, "rank": rank, "node": f"n{rank // 2 + 1}", "step": step, "phase": phase, "order": order}
        | {"stack": stack if frames else ""}
        | more
    )


def said(notes: list[Note], world_size: int | None = None) -> str:
    behind = find_behind(notes, world_size or len(notes))
    return sentence(behind, notes, lambda rank: f"n{rank // 2 + 1}")


def test_find_behind_names_the_rank_at_the_earliest_step_or_phase() -> None:
    notes = [note(0, 121), note(1, 121), note(2, 121), note(3, 120)]
    assert said(notes) == "rank 3 on n2: step 121, in backward; the others wait in step 122, in backward"
    notes[3] = note(3, 121, DATA)
    assert said(notes) == "rank 3 on n2: step 122, waiting for data; the others wait in step 122, in backward"
    notes = [note(0, 120, STEP_BODY), note(1, 120, METRICS), note(2, 121, AGREEMENT), note(3, 121, AGREEMENT)]
    assert find_behind(notes, 4) == Behind((0,), "position")


def test_find_behind_names_a_stopped_rank_unless_all_are_stopped() -> None:
    notes = [note(0, 120), note(1, 121), note(2, 121, state="T"), note(3, 121)]
    assert find_behind(notes, 4) == Behind((2,), "stopped")
    assert find_behind([note(0, state="T"), note(1, state="T")], 2).why == "suspended"
    assert not find_behind([note(0, state="T"), note(1, state="T")], 2).is_hang([note(0, state="T")])


def test_find_behind_names_the_working_rank_without_a_pending_collective() -> None:
    """The host of rank 0 waits for its GPU in an earlier step: by its position, it would be behind."""
    item = ("/home/user/train.py:9",)
    notes = [note(0, 120, METRICS, item, pending=True), *(note(rank, 121, pending=True) for rank in (1, 2))]
    late = note(3, 121, DATA, item, pending=False)
    assert find_behind([*notes, late], 4) == Behind((3,), "collective")
    assert find_behind([*notes, replace(late, pending=None)], 4) == Behind((0,), "position")


def test_find_behind_names_the_rank_in_a_surplus_collective() -> None:
    waits = (f"{COLLECTIVE}:9",)
    notes = [note(rank, frames=waits, pending=rank == 2) for rank in range(4)]
    assert find_behind(notes, 4) == Behind((2,), "collective")


def test_find_behind_names_the_minority_inside_or_outside_the_loop() -> None:
    left = [note(0), note(1), note(2, 120, PROGRAM)]
    assert find_behind(left, 3) == Behind((2,), "position")
    assert find_behind([note(0, 120, END), note(1, 120, END), note(2, 120, STEP_BODY)], 3) == Behind((2,), "position")


def test_find_behind_names_the_rank_outside_the_collective() -> None:
    waits = (f"{COLLECTIVE}:3", "train.py:31")
    notes = [note(0, frames=waits), note(1, frames=("train.py:12", "train.py:30")), note(2, frames=waits)]
    assert (
        said(notes)
        == "rank 1 on n1: step 121, in backward (train.py:12 in f); the others wait in step 121, in backward"
    )
    assert find_behind(notes, 3).is_hang(notes)


def test_find_behind_names_the_single_rank_at_another_code_line() -> None:
    notes = [
        note(0, frames=("train.py:31",)),
        note(1, frames=(f"{COLLECTIVE}:3", "train.py:7")),
        note(2, frames=("train.py:31",)),
    ]
    assert find_behind(notes, 3) == Behind((1,), "places")


def test_ranks_waiting_in_different_collectives_are_hung_and_all_listed() -> None:
    notes = [note(rank, frames=(f"{COLLECTIVE}:3", f"train.py:{30 + rank}")) for rank in range(2)]
    assert said(notes) == (
        "the ranks are at different places: rank 0 in step 121, in backward (train.py:30 in f); "
        "rank 1 in step 121, in backward (train.py:31 in f)"
    )
    assert find_behind(notes, 2).is_hang(notes)


def test_ranks_waiting_for_the_last_write_of_rank_0_are_not_hung() -> None:
    notes = [note(0, order=END, frames=("durable.py:9",)), note(1, order=END, frames=(f"{COLLECTIVE}:3",))]
    assert not find_behind(notes, 2).is_hang(notes)


def test_ranks_all_at_one_code_line_are_hung() -> None:
    notes = [note(rank, frames=("train.py:5",)) for rank in range(2)]
    assert said(notes) == "all ranks are at one place: step 121, in backward (train.py:5 in f)"
    assert find_behind(notes, 2).is_hang(notes)


@pytest.mark.parametrize("phase", [SAVE, EVALUATION, PROGRAM])
def test_save_evaluation_or_program_phase_is_hung_only_after_its_longer_limit(phase: int) -> None:
    notes = [note(0, 120, phase), note(1, 120, STEP_BODY)]
    behind = find_behind(notes, 2)
    assert behind.ranks == (0,)
    assert not behind.is_hang(notes)
    notes[0] = note(0, 120, phase, silent_s=1621.0)
    assert behind.is_hang(notes)
    assert behind.may_end(notes)


def test_ranks_waiting_for_each_other_in_evaluation_and_step_are_hung() -> None:
    waits = (f"{COLLECTIVE}:3", "train.py:31")
    notes = [note(0, 120, EVALUATION, waits), note(1, 120, STEP_BODY, waits)]
    behind = find_behind(notes, 2)
    assert behind.is_hang(notes)
    assert not behind.may_end(notes)


def test_import_of_torch_modules_is_not_treated_as_a_collective_wait() -> None:
    """Imported late, they take half a minute on a busy machine: two ranks, at different lines of torch.distributed."""
    imports = """Thread 0x0000000000000001 (most recent call first):
  File "/lib/torch/distributed/tensor/_ops/autogen.py", line 82 in _is_explicit_out_arg
  File "/lib/torch/distributed/tensor/_ops/__init__.py", line {} in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "train.py", line 31 in main
"""
    notes = [note(rank, 0, PROGRAM, stack=imports.format(rank)) for rank in (0, 1)]
    assert not any(each.surely_waits or each.waits for each in notes)
    assert not find_behind(notes, 2).is_hang(notes)
    assert not find_behind(notes[1:], 2).is_hang(notes[1:]), "rank 0's note has not come yet"


def test_hang_report_of_a_thousand_ranks_has_fewer_than_30_lines() -> None:
    waits = (f"{COLLECTIVE}:3", "train.py:31")
    notes = [note(rank, 120 if rank == 700 else 121, frames=waits) for rank in range(1000)]
    text = full_text(said(notes), notes, find_behind(notes, 1000))
    assert "rank 700 on n351: step 121, in backward" in text
    assert len(text.splitlines()) < 30
