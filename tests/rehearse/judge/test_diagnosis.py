"""Made-up histories: what the kernel and the files have shown, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterdp.check.program import CodePlace, ProgramText
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.log_files import batch_log
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.record.run_state import RunState
from clusterdp.rehearse.judge.diagnosis import FailedDrill, begun_anew, diagnose, words_of_failure
from clusterdp.rehearse.judge.judge import why_missed
from clusterdp.rehearse.judge.signal_faults import unsaved
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.run_spec import Facts, Hit, RunResult
from clusterdp.rundir import RunDir

BEGAN, HIT, GRACE = 100.0, 110.0, 5.0
FIRST = AttemptHistory("7.0", 1, cause="preempted", started=BEGAN, ended=112.0)
SECOND = AttemptHistory("7.1", 2, cause="done", started=120.0, ended=150.0)
IN_PLACE = {"step_4.pt": FileUse(written=[1.0])}
LINE = CodePlace(Path("/home/me/train.py"), 12, "dist.barrier()")


def stop(handlers: dict[str, str], **more: Any) -> Hit:
    return Hit("7.0", "preempted", 10, HIT, ("preempted",), handlers, grace_s=GRACE, **more)


def case(tmp_path: Path, hit: Hit, *attempts: AttemptHistory, **more: Any) -> FailedDrill:
    run = RunDir(tmp_path)
    files = more.pop("files", {})
    result = RunResult(more.pop("state", "done"), hits=(hit,), files=files, facts=Facts(steps=24, took_s=50.0))
    history = RunHistory(
        run, "job", "", RunState.DONE, "", ("7",), "", "", 1.0, attempts or (FIRST, SECOND), (), False, False
    )
    facts = Facts(steps=24, files=more.pop("undisturbed", IN_PLACE))
    return FailedDrill(more.pop("drill", "preempted"), result, history, facts, more.pop("lost", 6), **more)


@pytest.mark.parametrize(
    ("handlers", "said"),
    [
        (["ignored"] * 2, "the program ignores SIGTERM, on all ranks; 6 steps had to be done again"),
        (["default"] * 2, "the program has no handler for SIGTERM: all ranks die of it at once"),
        (["handled", "default"], "rank 0 alone handles SIGTERM: rank 1 dies of it at once"),
        (["handled", "ignored", "ignored"], "rank 0 alone handles SIGTERM: ranks 1, 2 ignore it"),
    ],
)
def test_diagnosis_names_ranks_ignoring_or_dying_of_sigterm(tmp_path: Path, handlers: list[str], said: str) -> None:
    hit = stop({str(rank): word for rank, word in enumerate(handlers)})
    assert diagnose(case(tmp_path, hit)).startswith(said)
    by_luck = diagnose(case(tmp_path, hit, lost=0))
    assert by_luck == ("" if "handled" in handlers and "default" not in handlers else said.partition(";")[0])


HANDLED = {"0": "handled", "1": "handled"}
KILLED = FIRST._replace(ended=HIT + GRACE + 0.2)


def test_shell_killed_by_sigterm_above_the_program_is_named(tmp_path: Path) -> None:
    said = diagnose(case(tmp_path, stop(HANDLED, shells={"0": "bash", "1": "bash"})))
    assert said.startswith("SIGTERM kills bash above the program of ranks 0, 1")
    by_luck = case(tmp_path, stop(HANDLED, shells={"0": "bash"}), lost=0)
    assert diagnose(by_luck).startswith("SIGTERM kills bash above the program of rank 0, which ends the task")
    assert unsaved(by_luck, 0) == "the warning was not heard; nothing was lost, by luck (rehearse.may_lose is 0)"
    assert unsaved(by_luck, 1) == ""


def test_diagnosis_of_a_kill_after_sigterm_distinguishes_saving_training_and_hanging(tmp_path: Path) -> None:
    saving = {"step_10.pt.tmp": FileUse(written=[HIT + GRACE], closed=[HIT + GRACE])}
    said = diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND, files=saving))
    assert said.startswith("the warning is shorter than the save: step_10.pt.tmp was not whole 5 s after SIGTERM")
    late = {
        "best.pt.tmp": FileUse(written=[HIT + GRACE + 4, 140.0], closed=[HIT + GRACE + 4, 140.0], gone=[140.1])
    }  # KillWait, and the next attempt
    assert diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND, files=late)).startswith("the warning is shorter than")
    whole = {"step_10.pt.tmp": FileUse(written=[HIT + GRACE], closed=[HIT + GRACE], gone=[HIT + GRACE])}
    assert "shorter" not in diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND, files=whole))
    said = diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND, last_steps={"7.0": 20}))
    assert said.startswith("its handler does not stop the training: 5 s after SIGTERM it was at step 20, from 10")
    said = diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND))
    assert said.startswith("it hangs in its handler, or its save takes longer than the warning")
    text = ProgramText(collective_in_handler=[LINE])
    said = diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND, text=text))
    assert said.startswith(
        "5 s after SIGTERM it had neither saved nor ended; its handler calls a collective (train.py:12: "
    )


def test_collective_in_a_signal_handler_is_not_named_without_a_hang(tmp_path: Path) -> None:
    met = case(tmp_path, stop(HANDLED), lost=0, text=ProgramText(collective_in_handler=[LINE]))
    assert (unsaved(met, 0), diagnose(met)) == ("", "")
    unread = {"step_4.pt": FileUse(written=[104.0])}
    ended = case(tmp_path, stop(HANDLED), text=met.text, undisturbed={}, files=unread)
    assert diagnose(ended).startswith("it handles SIGTERM, and ends without a save")


def test_single_repeated_step_after_sigterm_is_forgiven_unless_the_program_was_killed(tmp_path: Path) -> None:
    assert unsaved(case(tmp_path, stop(HANDLED), lost=1), 0) == ""
    said = unsaved(case(tmp_path, stop(HANDLED), KILLED, SECOND, lost=1), 0)
    assert said == "1 step done again, though it was warned (rehearse.may_lose is 0)"
    assert unsaved(case(tmp_path, stop(HANDLED), KILLED, SECOND, lost=1), 1) == ""


def test_program_without_printed_steps_counts_as_saved_if_a_file_just_changed(tmp_path: Path) -> None:
    def said(**files: FileUse) -> str:
        return unsaved(case(tmp_path, stop(HANDLED), files=files, lost=None), 0)

    before = FileUse(written=[HIT - 3])
    assert said(a=before) == "it was warned, and ended without a save (rehearse.may_lose is 0)"
    assert "ends without a save" in diagnose(case(tmp_path, stop(HANDLED), files={"a": before}, lost=None))
    assert said(a=before, b=FileUse(named=[HIT + 1])) == "", "a rename is not a write"
    assert said(a=FileUse(written=[HIT - 0.5])) == "", "it has saved just before"
    assert said() == "", "nothing is known of its files"
    each_second = {"a": FileUse(written=[1.0, 2.0, 3.0])}
    quick = case(tmp_path, stop(HANDLED), files={"a": FileUse(written=[HIT - 0.5])}, lost=None, undisturbed=each_second)
    assert unsaved(quick, 0).startswith("it was warned, and ended without a save"), "half of its interval ago"
    killed = case(tmp_path, stop(HANDLED), KILLED, SECOND, files={"a": before}, lost=None)
    assert unsaved(killed, 0) == "it was warned, and ended without a save (rehearse.may_lose is 0)"


def test_handler_is_not_blamed_for_a_few_steps_of_a_fast_training(tmp_path: Path) -> None:
    given = case(tmp_path, stop(HANDLED), KILLED, SECOND, last_steps={"7.0": 14})
    assert diagnose(given).startswith("its handler does not stop the training")
    quick = replace(given, facts=replace(given.facts, steps=240, took_s=50.0, start_s=2.0))
    assert "does not stop the training" not in diagnose(quick), "25 steps would be usual in 5 s"


def test_diagnosis_reports_steps_repeated_despite_being_in_the_checkpoint(tmp_path: Path) -> None:
    files = {"step_4.pt": FileUse(written=[HIT], steps=[12], read=[121.0])}
    given = case(tmp_path, stop(HANDLED), files=files, undisturbed=files)
    for name, steps in (("7.0", (1, 12)), ("7.1", (9, 24))):
        given.history.run.attempt(name).logs.mkdir(parents=True)
        given.history.run.attempt(name).rank_log(0).write_text("".join(f"step {i}\n" for i in range(*steps)))
    said = "attempt 2 resumed from step_4.pt, saved at step 12, and began at step 9: steps were done twice"
    assert diagnose(given).startswith(said)


def test_collective_in_a_signal_handler_is_reported_before_checkpoint_faults(tmp_path: Path) -> None:
    files = {"step_4.pt": FileUse(written=[105.0], read=[]), "step_8.pt": FileUse(written=[106.0])}
    text = ProgramText(collective_in_handler=[LINE])
    said = diagnose(case(tmp_path, stop(HANDLED), KILLED, SECOND, files=files, text=text, undisturbed=files))
    assert said.startswith("5 s after SIGTERM it had neither saved nor ended; its handler calls a collec")


def test_diagnosis_explains_a_missing_requeue_after_the_preemption(tmp_path: Path) -> None:
    early = FIRST._replace(cause="done")
    saved = case(tmp_path, stop(HANDLED), early, last_steps={"7.0": 10})
    assert diagnose(saved).startswith("it was told to stop, exited with 0 at step 10 of 24, and was not brought back")
    assert diagnose(replace(saved, last_steps={"7.0": 24})) == "", "it had come to its end"
    failed = case(tmp_path, stop(HANDLED), FIRST._replace(failed=True), state="failed", requeue=False)
    assert diagnose(failed) == "it stopped and was not brought back: restart.requeue is false"


def test_preempted_program_exiting_with_0_counts_as_hit_only_before_its_end(tmp_path: Path) -> None:
    """By the steps that it has printed; without these, by its time."""
    early = case(tmp_path, stop(HANDLED), FIRST._replace(cause="done"))
    log = RunDir(tmp_path).attempt("7.0").rank_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("step 9\nstep 10\n")
    assert why_missed(early.result, early.history) == ""
    log.write_text("step 23\nstep 24\n")
    assert why_missed(early.result, early.history) == "preempted, and attempt 7.0 is on record as done"
    silent = replace(early.result, facts=Facts(took_s=50.0))
    assert why_missed(silent, early.history) == ""
    assert why_missed(replace(silent, facts=Facts(took_s=12.0)), early.history)


MODEL = {"model.pt": FileUse(written=[104.0], read=[125.0]), "data.bin": FileUse(read=[101.0, 124.0])}


def printed(tmp_path: Path, name: str, *steps: int) -> None:
    log = RunDir(tmp_path).attempt(name).rank_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"step {step}\n" for step in steps))


@pytest.mark.parametrize(
    ("first", "said"), [(0, "attempt 2 resumed from model.pt, and began at step 0 again"), (4, "")]
)
def test_resume_from_a_model_is_reported_only_if_steps_restart_at_zero(tmp_path: Path, first: int, said: str) -> None:
    printed(tmp_path, "7.0", 0, 5, 10)
    printed(tmp_path, "7.1", first, first + 5, 24)
    assert diagnose(case(tmp_path, stop(HANDLED), files=MODEL, undisturbed={}, lost=0)) == said


@pytest.mark.parametrize(("first", "torn", "anew"), [(0, "", True), (4, "", False), (0, "step_4.pt", False)])
def test_restart_at_step_0_is_reported_only_beside_a_complete_checkpoint(
    tmp_path: Path, first: int, torn: str, anew: bool
) -> None:
    printed(tmp_path, "7.0", 0, 5, 10)
    printed(tmp_path, "7.1", first, first + 5, 24)
    files = {"step_4.pt": FileUse(written=[104.0])}
    found = begun_anew(case(tmp_path, stop(HANDLED, file=torn), files=files))
    assert found == ("attempt 2 began at step 0 again, though step_4.pt was there" if anew else "")


def test_resume_from_an_older_save_than_the_newest_is_reported(tmp_path: Path) -> None:
    files = {"last.ckpt": FileUse(written=[104.0], read=[125.0]), "hpc_1.ckpt": FileUse(written=[HIT + 0.1])}
    said = diagnose(case(tmp_path, stop(HANDLED), files=files))
    assert said == "hpc_1.ckpt was saved after the warning, but attempt 2 resumed from last.ckpt, which is older"
    files["hpc_1.ckpt"].read.append(124.0)
    assert "hpc_1.ckpt" not in diagnose(case(tmp_path, stop(HANDLED), files=files))


@pytest.mark.parametrize("name", ["best.ckpt", "last.ckpt.tmp"])
def test_resume_is_not_expected_to_read_best_checkpoints_or_temporary_files(tmp_path: Path, name: str) -> None:
    usual = {"last.ckpt.tmp": FileUse(written=[1.0], gone=[1.1]), "last.ckpt": FileUse(named=[1.1])}
    files = {"last.ckpt": FileUse(named=[104.0], read=[125.0]), name: FileUse(written=[HIT + 0.1])}
    assert name not in diagnose(case(tmp_path, stop(HANDLED), files=files, undisturbed=usual))


def test_reading_a_data_file_does_not_count_as_reading_a_checkpoint(tmp_path: Path) -> None:
    files = {"data.bin": FileUse(read=[101.0, 124.0]), "step_4.pt": FileUse(written=[104.0])}
    said = diagnose(case(tmp_path, stop(HANDLED), files=files))
    assert said == "attempt 2 has read no checkpoint, though step_4.pt was there: it began anew"


def test_attempt_resumed_at_a_later_step_is_not_reported_as_begun_anew(tmp_path: Path) -> None:
    printed(tmp_path, "7.0", 0, 5, 10)
    printed(tmp_path, "7.1", 5, 10, 24)
    assert "began anew" not in diagnose(case(tmp_path, stop(HANDLED), files={"step_4.pt": FileUse(written=[104.0])}))


def test_probe_file_of_tempfile_is_not_taken_for_the_first_save(tmp_path: Path) -> None:
    files = {
        "step_4.pt": FileUse(written=[104.0], read=[124.0]),
        "/tmp/5i_k2kgc": FileUse(written=[123.0], gone=[123.1]),  # tempfile tries the folder
    }
    assert "read no checkpoint" not in diagnose(case(tmp_path, stop(HANDLED), files=files))


def test_error_of_the_requeued_attempt_is_reported_before_sigterm_faults(tmp_path: Path) -> None:
    late = SECOND._replace(cause="start", failed=True)
    printed(tmp_path, "7.1", 1)
    log = RunDir(tmp_path).attempt("7.1").rank_log(0)
    log.write_text("Traceback (most recent call last):\nRuntimeError: config.yaml is there already\n")
    deaf = stop({"0": "default"})
    said = diagnose(case(tmp_path, deaf, FIRST, late, state="failed", lost=0))
    assert said.startswith(
        "attempt 2 failed by itself: RuntimeError: config.yaml is there already. Besides, the program"
    )


def test_resume_failure_after_a_kill_during_saving_names_the_kill_moment(tmp_path: Path) -> None:
    late = SECOND._replace(cause="start", failed=True)
    printed(tmp_path, "7.1", 1)
    RunDir(tmp_path).attempt("7.1").rank_log(0).write_text("FileNotFoundError: a.pt\n")
    struck = replace(stop(HANDLED), moment="after latest was renamed, before a.pt was opened to be written")
    said = diagnose(case(tmp_path, struck, FIRST, late, state="failed", lost=0))
    assert said.startswith(
        f"killed {struck.moment}, it did not come back: attempt 2 failed by itself: FileNotFoundError"
    )


def test_readme_beside_a_checkpoint_is_not_reported_as_half_written(tmp_path: Path) -> None:
    late = SECOND._replace(cause="start", failed=True)
    printed(tmp_path, "7.1", 1)
    RunDir(tmp_path).attempt("7.1").rank_log(0).write_text("ValueError: Can't find a checkpoint at out/step-4\n")
    struck = replace(stop(HANDLED), moment="in the middle of out/README.md", file="out/README.md")
    assert diagnose(case(tmp_path, struck, FIRST, late, state="failed", lost=0)).startswith(f"killed {struck.moment}")


def test_ranks_beginning_at_different_steps_are_named(tmp_path: Path) -> None:
    for rank, first in ((0, 31), (1, 21)):
        for name, began in (("7.0", 1), ("7.1", first)):
            log = RunDir(tmp_path).attempt(name).rank_log(rank)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(f"step {step}\n" for step in range(began, began + 9)))
    began = "attempt 2 began at step 21 on rank 1 and at step 31 on rank 0"
    said = diagnose(case(tmp_path, stop(HANDLED), state="too-long"))
    assert said == f"{began}: its ranks went on from different checkpoints"
    RunDir(tmp_path).attempt("7.0").rank_log(1).write_text("step 2\nstep 3\n")
    assert "different checkpoints" not in diagnose(case(tmp_path, stop(HANDLED), state="too-long"))


CHECKPOINTS = {
    "step_4.pt": FileUse(written=[104.0], read=[125.0]),
    "step_8.pt": FileUse(written=[108.0]),
    "best.pt": FileUse(written=[109.0]),
}


def test_diagnosis_names_the_resumed_checkpoint_if_a_newer_one_existed(tmp_path: Path) -> None:
    said = diagnose(case(tmp_path, stop(HANDLED), files=CHECKPOINTS))
    assert said == "attempt 2 resumed from step_4.pt, though step_8.pt was there and newer"
    unread = {name: replace(use, read=[]) for name, use in CHECKPOINTS.items()}
    said = diagnose(case(tmp_path, stop(HANDLED), files=unread))
    assert said == "attempt 2 has read no checkpoint, though step_8.pt was there: it began anew"
    struck = {**CHECKPOINTS, "step_4.pt": FileUse(), "step_9.pt": FileUse(read=[125.0])}
    assert "newer" not in diagnose(case(tmp_path, stop(HANDLED), files=struck))
    newest = CHECKPOINTS | {"step_8.pt": FileUse(written=[108.0], read=[125.1])}
    assert diagnose(case(tmp_path, stop(HANDLED), files=newest, lost=0)) == ""


CRASHED = SECOND._replace(cause="crash", failed=True)


def test_diagnosis_of_a_torn_checkpoint_distinguishes_saving_in_place_from_temporary_files(tmp_path: Path) -> None:
    for name, undisturbed, said in (
        ("step_8.pt", IN_PLACE, "checkpoints are saved in place: attempt 2 resumed from"),
        (
            "step_8.pt.tmp",
            {"step_4.pt.tmp": FileUse(written=[1.0], gone=[1.1]), "step_4.pt": FileUse(named=[1.1])},
            "it resumes from a file that is half written: attempt 2 resumed from step_8.pt.tmp",
        ),
    ):
        hit = Hit("7.0", "killed", 8, HIT, ("crash",), file=name)
        files = {name: FileUse(written=[HIT], read=[121.0])}
        torn = case(tmp_path, hit, FIRST, CRASHED, files=files, undisturbed=undisturbed, state="failed")
        assert diagnose(torn).startswith(said)


def test_missing_file_in_a_torn_checkpoint_folder_is_reported_as_half_written(tmp_path: Path) -> None:
    hit = Hit("7.0", "killed", 8, HIT, ("crash",), file="out/step_8/optimizer.pt")
    failed = case(tmp_path, hit, FIRST, CRASHED, files={}, undisturbed={}, state="failed")
    log = failed.history.run.attempt("7.1").rank_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("FileNotFoundError: [Errno 2] No such file or directory: 'out/step_8/trainer_state.json'\n")
    assert diagnose(failed).startswith("it resumes from a file that is half written: it resumed from what it found")
    log.write_text("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'\n")
    assert "half written" not in diagnose(failed)


def test_failure_message_quotes_the_rank_log_or_else_sruns_error(tmp_path: Path) -> None:
    """srun reports an exit code, and the rank's log ends in a line that names no error."""
    failed = case(tmp_path, stop(HANDLED), FIRST._replace(cause="start", failed=True), state="failed")
    printed(tmp_path, "7.0", 1)
    RunDir(tmp_path).attempt("7.0").rank_log(0).write_text("this image was built for another processor\n")
    batch = batch_log(failed.history.run, "7")
    batch.write_text("srun: error: n1: task 0: Exited with exit code 255\n")
    assert words_of_failure(failed.history) == (
        "this image was built for another processor (Exited with exit code 255)"
    )
    RunDir(tmp_path).attempt("7.0").rank_log(0).unlink()
    batch.write_text("srun: unrecognized option '--x'\nTry \"srun --help\" for more\nclusterdp: crashed; see logs\n")
    assert words_of_failure(failed.history) == "srun: unrecognized option '--x'"
