"""Two runs that were copied save by save: since when they differ, and what began anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.judge.after_fault import AfterFault, after_fault
from clusterdp.rehearse.judge.lost_state import Kept, counters_behind, name_the_loss, restarted
from clusterdp.rehearse.judge.reference import Reference, end_state
from clusterdp.rehearse.observe.file_versions import folder_of_versions
from clusterdp.rehearse.run_spec import Facts, Hit, RunResult
from clusterdp.rehearse.state import Difference
from clusterdp.rundir import Ledger, RunDir

Values = Mapping[str, Any]


def made(path: Path, logs: list[str], saves: list[tuple[int, Values]]) -> RunDir:
    """A run with these logs of its attempts, and these saves of a.pt: after so many attempts have begun."""
    run = RunDir(path)
    run.code.mkdir(parents=True)
    Ledger(run, "submit-7", "submit").write("submitted", job="7", name="x")
    folder_of_versions(path).mkdir()
    index = []
    for number, text in enumerate(logs):
        attempt = run.attempt(f"7.{number}")
        attempt.logs.mkdir(parents=True)
        attempt.rank_log(0).write_text(text)
        attempt.cause.write_text("done\n" if number == len(logs) - 1 else "crash\n")
        Ledger(run, attempt.name, "batch").write("started", job="7")
        began = read_history(run).attempts[-1].started or 0.0
        for count, values in saves:
            if count == number + 1:
                copy = folder_of_versions(path) / f"{len(index)}.pt"
                torch.save(values, copy)
                at = began + 1e-6 * (len(index) + 1)
                index.append({"name": "a.pt", "at": at, "step": 0, "copy": str(copy), "is_gone": False})
        Ledger(run, attempt.name, "batch").write("finished" if number == len(logs) - 1 else "requeued")
    (folder_of_versions(path) / "index.jsonl").write_text("".join(json.dumps(each) + "\n" for each in index))
    (run.code / "a.pt").write_bytes((folder_of_versions(path) / f"{len(index) - 1}.pt").read_bytes())
    return run


def save(step: int, weight: float, count: float | None = None, **more: Any) -> Values:
    """Of a model and Adam; count: of Adam's steps."""
    adam = {"step": torch.tensor(float(step if count is None else count)), "exp_avg": torch.full((3,), weight)}
    optimizer = {"state": {0: adam}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return {"step": step, "net": {"w": torch.full((3,), weight)}, "opt": optimizer, **more}


UNDISTURBED = [(1, save(step, step / 10)) for step in (2, 4, 6, 8)]
LOG = "".join(f"step {step} loss {step / 10}\n" for step in range(1, 9))


def after(
    tmp_path: Path,
    saves: list[tuple[int, Values]],
    log: str = LOG,
    undisturbed: list[tuple[int, Values]] = UNDISTURBED,
    undisturbed_again: list[tuple[int, Values]] | None = None,
) -> AfterFault:
    """Of a run whose second attempt printed this log; attempt and save, as above."""
    first = made(tmp_path / "undisturbed", [LOG], undisturbed)
    again = made(tmp_path / "again", [LOG], undisturbed_again or undisturbed)
    state = end_state(first, ("a.pt",))
    assert state
    reference = Reference(first.path, Facts(steps=8, counter="step"), state, ("a.pt",), again=again.path)
    run = made(tmp_path / "drill", ["step 1\n", log], saves)
    found = after_fault(reference, run, read_history(run), RunResult("done", hits=(Hit("7.0", "killed", 3, 0.0),)))
    assert found
    return found


def test_first_save_differing_from_the_undisturbed_run_is_named(tmp_path: Path) -> None:
    found = after(tmp_path, [(1, save(2, 0.2)), (2, save(4, 0.4)), (2, save(6, 0.7)), (2, save(8, 9.0))])
    assert found.first
    assert found.first.words == "a.pt of step 4 is the same, and a.pt of step 6 differs"
    assert [each.key for each in found.first.differences] == ["net.w", "opt.state.0.exp_avg"]
    assert [each.state.values["step"].value for each in found.resumed] == [2]


def test_differing_state_takes_precedence_over_an_earlier_differing_option(tmp_path: Path) -> None:
    undisturbed = [(1, save(step, step / 10, args="scratch")) for step in (2, 4, 6)]
    at_once = (2, save(2, 0.2, args="resume"))
    found = after(tmp_path / "a", [(1, undisturbed[0][1]), at_once, (2, save(4, 0.5, args="resume"))], LOG, undisturbed)
    assert found.first
    assert found.first.words == "a.pt of step 2 is the same but for args, and a.pt of step 4 differs"
    found = after(tmp_path / "b", [(1, undisturbed[0][1]), at_once, (2, save(4, 0.4, args="resume"))], LOG, undisturbed)
    assert found.first
    assert found.first.words == "a.pt of step 2, the first checkpoint after the resume, differs already"


def test_step_with_several_different_undisturbed_saves_is_not_compared(tmp_path: Path) -> None:
    undisturbed = [(1, {"net": {"w": torch.full((3,), number)}, "step": 2}) for number in (1.0, 2.0)]
    saves = [undisturbed[0], (2, undisturbed[0][1]), (2, undisturbed[1][1])]
    assert after(tmp_path / "a", saves, LOG, undisturbed).first is None
    assert after(tmp_path / "b", saves, LOG, undisturbed[1:]).first


def test_step_of_a_save_comes_from_global_step_not_eval_steps(tmp_path: Path) -> None:
    undisturbed = [(1, {"eval_steps": 500, "global_step": step, "w": torch.full((3,), 1.0)}) for step in (2, 4)]
    found = after(tmp_path, [undisturbed[0], (2, {**undisturbed[1][1], "w": torch.zeros(3)})], LOG, undisturbed)
    assert found.first and found.first.save.words == "a.pt of global_step 4"


def test_save_within_the_spread_of_two_undisturbed_runs_counts_as_equal(tmp_path: Path) -> None:
    noisy = [(1, save(2, 0.2)), (1, save(4, 0.5))]
    saves = [(1, save(2, 0.2)), (2, save(4, 0.6))]
    assert after(tmp_path / "a", saves, undisturbed_again=noisy).first is None
    assert after(tmp_path / "b", saves).first


def test_save_at_a_step_unsaved_in_undisturbed_runs_is_ignored(tmp_path: Path) -> None:
    found = after(tmp_path, [(1, save(2, 0.2)), (2, save(5, 9.0)), (2, save(8, 0.8))])
    assert found.first is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "step 3 loss 0.3\nstep 4 loss 0.5\n",
            "are the same at step 3, and differ from step 4 on (loss 0.5 against 0.4)",
        ),
        ("step 3 loss 0.5\n", "differ from step 3 on, the first after the resume (loss 0.5 against 0.3)"),
    ],
)
def test_first_step_with_a_different_printed_number_is_named(text: str, words: str, tmp_path: Path) -> None:
    printed = after(tmp_path, UNDISTURBED[:1], text).printed
    assert printed and printed.words == f"the printed numbers {words}"


def test_added_speed_in_a_log_line_is_not_a_difference(tmp_path: Path) -> None:
    assert after(tmp_path, UNDISTURBED[:1], "step 3 loss 0.3 (9.5 it/s)\n").printed is None


def test_optimizer_with_a_step_count_restarted_at_zero_is_reported(tmp_path: Path) -> None:
    [words] = restarted(after(tmp_path, [(1, save(2, 0.2)), (2, save(4, 0.5, count=2))]))
    assert words == (
        "opt (the optimizer of net.w) began anew at the resume: opt.state.0.step stood at 2 in a.pt, and is 2 in a.pt "
        "of step 4, not 4"
    )


@pytest.mark.parametrize("resumed", [save(2, 0.2), save(2, 0.2, count=0), {"step": 2}])
def test_unexplained_optimizer_step_count_is_not_reported_as_a_restart(resumed: Values, tmp_path: Path) -> None:
    assert restarted(after(tmp_path, [(1, resumed), (2, save(4, 0.5, count=3))])) == []


def test_scheduler_and_data_position_restarted_at_zero_are_reported(tmp_path: Path) -> None:
    counts = [{"sched": {"last_epoch": n, "_step_count": n + 1}, "data": {"position": 5 * n}} for n in (2, 4)]
    undisturbed = [(1, save(2, 0.2, **counts[0])), (1, save(4, 0.4, **counts[1]))]
    anew = save(4, 0.5, count=4, sched={"last_epoch": 2, "_step_count": 3}, data={"position": 10})
    words = restarted(after(tmp_path, [undisturbed[0], (2, anew)], undisturbed=undisturbed))
    assert [each.partition(" began anew at the resume: ")[::2] for each in words] == [
        ("the scheduler", "sched.last_epoch stood at 2 in a.pt, and is 2 in a.pt of step 4, not 4"),
        ("the position in the data", "data.position stood at 10 in a.pt, and is 10 in a.pt of step 4, not 20"),
    ]


def test_optimizer_skipping_every_step_after_resume_is_not_reported_as_restarted(tmp_path: Path) -> None:
    assert restarted(after(tmp_path, [(1, save(2, 0.2)), (2, save(4, 0.2, count=2))])) == []


def test_counters_behind_reports_steps_skipped_by_the_optimizer(tmp_path: Path) -> None:
    found = after(tmp_path, [(1, save(2, 0.2)), (2, save(4, 0.5, count=3))])
    assert counters_behind(found) == ": opt.state.0.step is 3, not 4, so 1 more steps were skipped"
    assert counters_behind(None) is None


def test_diagnosis_reports_the_first_differing_save_and_printed_step(tmp_path: Path) -> None:
    found = after(tmp_path, [(1, save(2, 0.2)), (2, save(4, 0.5))], "step 3 loss 0.31\n")
    assert found.first
    kept = Kept(found.first.expected.state, {})
    said = name_the_loss([Difference("net.w", "differs in 3 of 3 elements", None, "model", 0.1)], kept, found)
    assert said.startswith(
        "a.pt of step 4, the first checkpoint after the resume, differs already: the model differs in"
    )
    assert said.endswith(
        "; the printed numbers differ from step 3 on, the first after the resume (loss 0.31 against 0.3)"
    )
