"""From what a run has left to the verdict on its drill."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterdp.config import Config
from clusterdp.config.tree import RehearseConfig, TrainConfig
from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.drills.table import DRILLS, NAMES, drill_of
from clusterdp.rehearse.judge.judge import judge, why_missed
from clusterdp.rehearse.judge.lost_work import steps_lost
from clusterdp.rehearse.judge.reference import Reference, end_state
from clusterdp.rehearse.judge.verdict import FAILED, INAPPLICABLE, LOST_WORK, PASSED, Verdict
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.run_spec import Facts, Hit, RunResult, RunSpec
from clusterdp.rundir import Ledger, RunDir

MakeRun = Callable[..., RunDir]
CONFIG = Config(command=["python", "count.py"])


@pytest.fixture
def made(tmp_path: Path) -> MakeRun:
    """A run folder of a program of its own: causes of its attempts, the steps that each has printed, its end state."""

    def make(
        causes: list[str], printed: list[str], state: dict[str, Any], name: str = "run", names: Sequence[str] = ()
    ) -> RunDir:
        run = RunDir(tmp_path / name)
        run.code.mkdir(parents=True)
        Ledger(run, "submit-7", "submit").write("submitted", job="7", name="x")
        for number, (cause, text) in enumerate(zip(causes, printed, strict=True)):
            attempt = run.attempt(names[number] if names else f"7.{number}")
            attempt.logs.mkdir(parents=True)
            attempt.rank_log(0).write_text(text)
            attempt.cause.write_text(f"{cause}\n")
            Ledger(run, attempt.name, "batch").write("started", job="7")
            ending = {"done": "finished"}.get(cause, "requeued")
            Ledger(run, attempt.name, "batch").write(ending, cause=cause)
        (run.code / "state.json").write_text(json.dumps(state))
        return run

    return make


def reference(made: MakeRun, total: float = 4, epoch: int = 3, name: str = "sum") -> Reference:
    run = made(["done"], ["step 9"], {name: total, "scheduler": {"last_epoch": epoch}}, "undisturbed")
    state = end_state(run, ("state.json",))
    assert state
    return Reference(run.path, Facts(steps=9), state, ("state.json",))


def hit(*causes: str, attempt: str = "7.0", **more: Any) -> Hit:
    return Hit(attempt, "it was preempted", 5, 0.0, causes, **more)


def verdict_of(made: MakeRun, run: RunDir, result: RunResult) -> Verdict:
    return judge(drill_of("preempted"), result, run.path, reference(made), CONFIG)


def test_drill_passes_if_the_requeued_job_reaches_the_same_end_state(made: MakeRun) -> None:
    run = made(["preempted", "done"], ["step 4", "step 5\nstep 9"], {"sum": 4, "scheduler": {"last_epoch": 3}})
    verdict = verdict_of(made, run, RunResult("done", hits=(hit("preempted", grace_s=9.0),)))
    assert (verdict.verdict, verdict.said) == (PASSED, "back after 1 interruption, nothing lost, bit for bit")
    assert verdict.evidence == ("attempt 1: it was preempted",)


@pytest.mark.parametrize(
    ("total", "epoch", "exact", "verdict"),
    [
        (4.0001, 5000, "same_ranks", PASSED),
        (4.1, 5000, "same_ranks", FAILED),
        (4.0, 5001, "same_ranks", FAILED),
        (4.0, 5000, "any_ranks", PASSED),
        (4.0001, 5000, "any_ranks", FAILED),
    ],
)
def test_other_number_of_nodes_passes_with_a_rounded_state_and_exact_counts(
    made: MakeRun, total: float, epoch: int, exact: str, verdict: str
) -> None:
    """With train.exact: any_ranks, only with the same state."""
    state = {"model": total, "scheduler": {"last_epoch": epoch}}
    run = made(["preempted", "done"], ["step 4", "step 5\nstep 9"], state)
    result = RunResult("done", hits=(hit("preempted", grace_s=9.0),))
    config = replace(CONFIG, train=TrainConfig(exact=exact))
    found = judge(drill_of("fewer-nodes"), result, run.path, reference(made, 4.0, 5000, "model"), config)
    assert found.verdict == verdict, found.said
    equal = "equal but for rounding" if exact == "same_ranks" else "bit for bit"
    assert (found.verdict == PASSED) == (f"nothing lost, {equal}" in found.said)


def test_drill_cut_off_by_the_rehearsal_itself_is_undecided(made: MakeRun) -> None:
    run = made(["preempted", "done"], ["step 4", "step 5"], {"sum": 3})
    ref, hits = reference(made), (hit("preempted", grace_s=9.0),)
    late = RunResult("too-long", why="it was not over after 446 s", hits=hits)
    hangs = RunResult("stuck", why="its ranks have used no processor and made no step for 30 s", hits=hits)
    found = [judge(drill_of("preempted"), result, run.path, ref, CONFIG) for result in (late, hangs)]
    assert [each.verdict for each in found] == ["not landed", "failed"]
    assert found[0].said.startswith("undecided: it was not over after 446 s,")


def test_passing_drill_before_the_first_save_reports_reading_no_checkpoint(made: MakeRun) -> None:
    run = made(["crash", "done"], ["step 1\nstep 4", "step 1\nstep 9"], {"sum": 4, "scheduler": {"last_epoch": 3}})
    ref = reference(made)
    ref.facts = Facts(steps=9, files={"a.pt": FileUse(written=[1e12])})
    verdict = judge(drill_of("rank-killed"), RunResult("done", hits=(hit("crash"),)), run.path, ref, CONFIG)
    assert verdict.said == "back after 1 interruption, 4 steps lost, no checkpoint was read, bit for bit"


def test_passing_drill_reports_an_attempt_failed_by_itself(made: MakeRun) -> None:
    steps = ["step 3\nstep 4", "step 5\nstep 6", "step 7\nstep 9"]
    run = made(["preempted", "crash", "done"], steps, {"sum": 4, "scheduler": {"last_epoch": 3}})
    run.attempt("7.1").rank_log(0).write_text(f"{steps[1]}\nRuntimeError: size mismatch for w\n")
    verdict = verdict_of(made, run, RunResult("done", hits=(hit("preempted", grace_s=9.0),)))
    said = "back after 1 interruption, nothing lost, bit for bit; attempt 2 failed by itself: RuntimeError: size mism"
    assert (verdict.verdict, verdict.said[: len(said)]) == (PASSED, said)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"memory": True}], ""),
        ([{}], "attempt 2 resumed from disk, and not from memory"),
        ([], "attempt 2 resumed from nothing, and not from memory"),
    ],
)
def test_memory_drill_fails_if_the_attempt_resumes_from_disk(
    made: MakeRun, events: list[dict[str, bool]], said: str
) -> None:
    run = made(["crash", "done"], ["step 4", "step 5\nstep 9"], {"sum": 4, "scheduler": {"last_epoch": 3}})
    for event in events:
        Ledger(run, "7.1", "rank").write("restored", step=4, **event)
    verdict = verdict_of(made, run, RunResult("done", hits=(hit("crash", resumes="memory"),)))
    assert (verdict.verdict, verdict.said) == ((FAILED, said) if said else (PASSED, verdict.said))


@pytest.mark.parametrize(
    ("second", "said"),
    [("7.0.1", ""), ("7.1", "attempt 2 came back through the queue, although the job had nodes left")],
)
def test_spare_node_drill_fails_if_the_job_is_requeued(made: MakeRun, second: str, said: str) -> None:
    state = {"sum": 4, "scheduler": {"last_epoch": 3}}
    run = made(["node-lost", "done"], ["step 4", "step 5\nstep 9"], state, names=("7.0", second))
    verdict = verdict_of(made, run, RunResult("done", hits=(hit("node-lost", in_place=True),)))
    assert (verdict.verdict, verdict.said) == ((FAILED, said) if said else (PASSED, verdict.said))


def test_passing_drill_reports_unreached_fault_moments(made: MakeRun) -> None:
    run = made(["crash", "done"], ["step 4", "step 5\nstep 9"], {"sum": 4, "scheduler": {"last_epoch": 3}})
    result = RunResult("done", hits=(hit("crash"),), unmade="2 moments of 5 did not come before the run was over")
    assert verdict_of(made, run, result).said.endswith(f"bit for bit; {result.unmade}")


def test_steps_lost_is_unknown_if_each_attempt_counts_its_own_steps(made: MakeRun) -> None:
    run = made(["preempted", "done"], ["step 1\nstep 5", "step 1\nstep 4"], {"sum": 4})
    assert steps_lost(read_history(run), run, Facts(steps=9, counter="step")) is None
    anew = made(["preempted", "done"], ["step 1\nstep 5", "step 1\nstep 9"], {"sum": 4}, "anew")
    assert steps_lost(read_history(anew), anew, Facts(steps=9, counter="step")) == 5


def test_repeated_saved_steps_are_lost_work_despite_an_equal_end_state(made: MakeRun) -> None:
    """The end state is the same bit for bit."""
    steps = ["".join(f"step {step}\n" for step in range(1, last)) for last in (8, 10)]
    run = made(["crash", "done"], steps, {"sum": 4, "scheduler": {"last_epoch": 3}})
    began = read_history(run).attempts[0].started or 0.0
    files = {"a.pt": FileUse(written=[began], steps=[6])}
    ref = reference(made)
    ref.facts = Facts(steps=9, files=files)
    result = RunResult("done", hits=(Hit("7.0", "killed", 7, began + 0.0001, ("crash",)),), files=files)
    verdict = judge(drill_of("rank-killed"), result, run.path, ref, CONFIG)
    said = "step 6 was saved to a.pt before the fault, and attempt 2 began at step 1: 6 saved steps done again"
    assert (verdict.verdict, verdict.said) == (LOST_WORK, f"{said}, all that was saved")
    config = Config(rehearse=RehearseConfig(may_lose=6))
    assert "6 saved steps" not in judge(drill_of("rank-killed"), result, run.path, ref, config).said


def test_state_saved_in_other_files_counts_as_kept(made: MakeRun) -> None:
    ref = reference(made)
    code = RunDir(ref.folder).code
    (code / "rng.json").write_text('{"rng": {"torch": 4}}')
    ref.facts = Facts(steps=9, files={"rng.json": FileUse(written=[1.0]), "gone.pt": FileUse(written=[1.0])})
    assert {"sum", "rng.json:rng.torch"} <= set(ref.all_kept().values)


def test_changed_end_state_fails_the_drill_with_the_differing_value(made: MakeRun) -> None:
    run = made(["preempted", "done"], ["step 4", "step 5"], {"sum": 4, "scheduler": {"last_epoch": 1}})
    verdict = verdict_of(made, run, RunResult("done", hits=(hit("preempted"),)))
    assert (verdict.verdict, verdict.diagnosis) == (
        FAILED,
        "the learning rate's schedule differs in 1 value (scheduler.last_epoch 3 against 1)",
    )


def test_repeated_steps_after_a_warning_fail_the_drill_unless_within_may_lose(made: MakeRun) -> None:
    run = made(["preempted", "done"], ["step 4\nstep 7", "step 5\nstep 9"], {"sum": 4, "scheduler": {"last_epoch": 3}})
    result = RunResult("done", hits=(hit("preempted", grace_s=9.0, handlers={"0": "ignored", "1": "ignored"}),))
    verdict = judge(drill_of("preempted"), result, run.path, ref := reference(made), CONFIG)
    assert (verdict.verdict, verdict.lost) == (FAILED, 3)
    assert verdict.diagnosis == "the program ignores SIGTERM, on all ranks; 3 steps had to be done again"
    config = Config(rehearse=RehearseConfig(may_lose=verdict.lost or 0))
    assert judge(drill_of("preempted"), result, run.path, ref, config).verdict == PASSED


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("default default", FAILED),
        ("ignored ignored", FAILED),
        ("handled default", FAILED),
        ("handled ignored", PASSED),
    ],
)
def test_lossless_drill_fails_unless_a_rank_handles_sigterm_and_none_dies(
    made: MakeRun, words: str, verdict: str
) -> None:
    run = made(["preempted", "done"], ["step 4", "step 5\nstep 9"], {"sum": 4, "scheduler": {"last_epoch": 3}})
    handlers = dict(enumerate(words.split()))
    result = RunResult("done", hits=(hit("preempted", grace_s=9.0, handlers=handlers),))
    got = judge(drill_of("preempted"), result, run.path, ref := reference(made), CONFIG)
    assert (got.verdict, got.lost) == (verdict, 0)
    assert ("nothing was lost, by luck" in got.said) == (verdict == FAILED)
    config = Config(rehearse=RehearseConfig(may_lose=1))
    assert judge(drill_of("preempted"), result, run.path, ref, config).verdict == PASSED


def test_fault_not_recorded_in_the_run_history_counts_as_missed(made: MakeRun) -> None:
    run = made(["done"], ["step 9"], {})
    history = read_history(run)
    assert why_missed(RunResult("done", hits=(hit("preempted"),)), history).endswith("is on record as done")
    assert why_missed(RunResult("done", hits=(hit(),)), history) == ""
    assert why_missed(RunResult("done"), history)


def test_impossible_fault_gives_the_verdict_inapplicable(made: MakeRun) -> None:
    verdict = verdict_of(made, RunDir(Path("gone")), RunResult("", inapplicable="no disk"))
    assert (verdict.verdict, verdict.said) == (INAPPLICABLE, "no disk")


def test_steps_lost_ignores_slurm_step_ids_in_logs(made: MakeRun) -> None:
    texts = [
        "step 3\nstep 4\nslurmstepd: error: *** STEP 63154.0 ON n1 CANCELLED ***",
        " 40%|##| 5/12 [00:01<00:01]\riter 5: x\n 50%|##| 6/12 [00:02<00:01]\niter 6: x",
    ]
    run = made(["preempted", "done"], texts, {})
    assert steps_lost(read_history(run), run, Facts(steps=12)) == 0
    silent = made(["done"], ["no number"], {}, "other")
    assert steps_lost(read_history(silent), silent, Facts()) is None


@pytest.mark.parametrize(
    ("before", "after", "saved", "lost"),
    [
        ([1, 2, 3], [4, 5], None, 0),
        ([1, 2, 3], [3, 4], 2, 1),
        ([1, 2, 3], [6, 7], None, None),  # what was told of steps 4 and 5 was lost in a buffer
        ([1, 20, 40], [45, 60], 10, 30),  # a bar, which is drawn now and then: step 11 was the first
        ([1, 20, 40], [45, 60], 25, None),  # less than a bar can tell
        ([1, 20, 40], [45, 60], 40, None),
    ],
)
def test_steps_lost_is_counted_from_the_checkpoint_if_step_logs_have_gaps(
    made: MakeRun, before: list[int], after: list[int], saved: int | None, lost: int | None
) -> None:
    texts = ["".join(f"step {step}\n" for step in steps) for steps in (before, after)]
    run = made(["preempted", "done"], texts, {})
    history = read_history(run)
    first, second = (each.started or 0.0 for each in history.attempts)
    files = {} if saved is None else {"a.pt": FileUse(written=[first], read=[second + 0.00001], steps=[saved])}
    usual = Facts(steps=60, files={"a.pt": FileUse(written=[1.0])})
    assert steps_lost(history, run, usual, files) == lost


def test_drill_names_are_unique() -> None:
    assert len(set(NAMES)) == len(DRILLS)


def test_run_spec_and_run_result_are_unchanged_by_a_json_round_trip() -> None:
    spec = RunSpec("n", {"entry": "a:b"}, ["x=1"], "/f", "/s", facts=Facts(steps=3, written={"/a": 1}))
    result = RunResult("done", "/f", hits=(hit("preempted", handlers={"0": "default"}),), facts=spec.facts)
    from dataclasses import asdict

    assert RunSpec.from_json(json.loads(json.dumps(asdict(spec)))) == spec
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result
