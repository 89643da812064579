"""A sweep as a whole: its table, its best elements, and its end; and that an element of it is a run like any other."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterdp
from clusterdp import config
from clusterdp.cli import main
from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.change.cancel import cancel
from clusterdp.operate.change.end_sweep import cancel_sweep, check_sweep_over, stop_sweep
from clusterdp.operate.find.find_run import find_run
from clusterdp.operate.find.run_index import remember
from clusterdp.operate.notebook import sweep_html
from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.record.note import write_note
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.sweep.elements import counts, read_sweep, status_table
from clusterdp.operate.sweep.results import best_first, measured
from clusterdp.operate.sweep.watch import SweepPace, to_retry, watch_sweep
from clusterdp.rundir import RunDir, SweepDir, append_line, sweep_of
from clusterdp.slurm.commands import element_states, job_states, max_array_size
from tests.operate.builder import T0, RunBuilder
from tests.operate.conftest import HEADER, FakeQueue
from tests.operate.status.test_watch import Clock

TABLE = """\
#  lr     opt   state    step     test_accuracy  test_loss  loss
2  0.001  sgd   running  60/100   0.9            0.4        0.01667
0  0.1    sgd   done     100/100  0.8            0.5        0.01
1  0.01   sgd   failed   30/100   -              -          0.03333
3  1e-05  adam  waiting  -        -              -          -"""


class SweepBuilder:
    """Four elements of array 7: done, failed, running and waiting."""

    def __init__(self, path: Path):
        path.mkdir(parents=True)
        self.sweep = SweepDir(path)
        rows = [(0.1, "sgd"), (0.01, "sgd"), (0.001, "sgd"), (1e-5, "adam")]
        self.sweep.write_table("digits", [{"params.lr": lr, "params.opt": opt} for lr, opt in rows])
        event = {"time": T0, "event": "submitted", "attempt": "submit-7", "job": "7", "offset": 0, "size": 4}
        append_line(self.sweep.files.events / "submit-7-submit.jsonl", event)
        self.elements = [RunBuilder(self.sweep.element(number).path) for number in range(4)]
        for number, element in enumerate(self.elements):
            element.submitted(f"7_{number}", folder=str(element.run.path))
        done, failed, running, _ = self.elements
        results = {"test_loss": 0.5, "test_accuracy": 0.8}
        done.attempt("7_0.0").trained(1, 100, 100).measured(step=100, total=100, **results).finished(100)
        failed.attempt("7_1.0").trained(1, 30, 100).failed(exit=1)
        running.attempt("7_2.0").trained(1, 60, 100).measured(step=60, total=100, test_loss=0.4, test_accuracy=0.9)


@pytest.fixture
def built(elsewhere: Path, queue: FakeQueue) -> SweepBuilder:
    queue.answers("7_2|RUNNING|None|n1", "7_3|PENDING|JobArrayTaskLimit|")
    return SweepBuilder(elsewhere / "runs/s")


def plain() -> Colour:
    return Colour(io.StringIO())


def test_sweep_table_has_values_states_and_metrics_best_first(built: SweepBuilder) -> None:
    elements = read_sweep(built.sweep).elements
    ranking = best_first(elements, "test_accuracy")
    lines = status_table(ranking.elements, plain(), ranking.metrics)
    assert "\n".join(lines) == TABLE
    assert all(len(line) <= 80 for line in lines)
    assert counts(elements, plain()) == "1 waiting, 1 running, 1 done, 1 failed"
    assert ranking.in_words() == "best first, by the last test_accuracy: the highest"
    assert sweep_html(built.sweep) == f"<pre>{TABLE}</pre>"


@pytest.mark.parametrize("verb", [cancel_sweep, stop_sweep, check_sweep_over, watch_sweep])
def test_cancel_stop_rm_and_watch_refuse_a_copied_sweep(built: SweepBuilder, queue: FakeQueue, verb: Any) -> None:
    shutil.copytree(built.sweep.path, "runs/copy")
    with pytest.raises(RunError, match=r"runs/copy: is a copy of runs/s, and job 7_0 is that one's\. Name runs/s;"):
        verb(SweepDir(Path("runs/copy").absolute()))
    assert "scancel" not in queue.asked


def test_sweep_table_in_a_narrow_terminal_has_fewer_columns(built: SweepBuilder) -> None:
    ranking = best_first(read_sweep(built.sweep).elements)
    for width, last in ((60, "test_loss"), (50, "test_accuracy"), (40, "test_accuracy"), (24, "state"), (5, "state")):
        lines = status_table(ranking.elements, plain(), ranking.metrics, width)
        assert lines[0].split()[-1] == last
        assert max(map(len, lines)) <= max(width, 23)
    assert "step" not in status_table(ranking.elements, plain(), ranking.metrics, 40)[0]


def test_read_sweep_asks_squeue_once(built: SweepBuilder, queue: FakeQueue) -> None:
    read_sweep(built.sweep)
    assert [line.split("--jobs=")[1].split()[0] for line in queue.asked] == ["7"]
    assert "--array" in queue.asked[0]


def test_best_first_ranks_by_the_direction_of_the_metric(built: SweepBuilder) -> None:
    elements = read_sweep(built.sweep).elements
    assert measured(elements) == ["test_accuracy", "test_loss", "loss"]
    assert [each.number for each in best_first(elements, "test_loss").elements] == [2, 0, 1, 3]
    assert [each.number for each in best_first(elements, "test_loss", lower=False).elements] == [0, 2, 1, 3]
    assert best_first(elements).metric == "test_accuracy"
    with pytest.raises(RunError, match=r"--by test_acuracy: no element has measured it\. Did you mean test_accuracy\?"):
        best_first(elements, "test_acuracy")


def test_sweep_function_and_command_return_elements_best_first(
    built: SweepBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = clusterdp.sweep("runs/s")
    assert rows[0]["element"] == 2
    assert {name: rows[0][name] for name in ("params.lr", "state", "step", "job", "test_loss")} == {
        "params.lr": 0.001,
        "state": "running",
        "step": 60,
        "job": "7_2",
        "test_loss": 0.4,
    }
    assert main(["sweep", "runs/s", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["metric"], said["elements"][0]["values"]["params.lr"]) == ("test_accuracy", 0.001)
    assert main(["sweep", "runs/s", "--csv"]) == 0
    assert [row["element"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["2", "0", "1", "3"]
    assert main(["sweep", "7", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == TABLE.splitlines()[1].split()
    assert lines[4:] == ["", "best first, by the last test_accuracy: the highest"]


def test_status_takes_a_sweep_or_an_element(built: SweepBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "runs/s"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "digits  1 waiting, 1 running, 1 done, 1 failed"
    assert main(["status", "runs/s/3"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("digits  waiting (JobArrayTaskLimit: as many elements")
    assert main(["logs", "runs/s"]) == 4
    assert capsys.readouterr().err.startswith("clusterdp: runs/s: is a sweep. Name an element, as runs/s/0;")
    assert main(["sweep", "runs/s/3", "--json"]) == 0  # the sweep that it is an element of
    assert len(json.loads(capsys.readouterr().out)["elements"]) == 4


def test_goodput_plot_and_diff_refuse_a_sweep(built: SweepBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["goodput"], ["plot"], ["diff", "runs/s/0"], ["diff"]):
        others = ["runs/s/1"] if words == ["diff"] else []
        assert main([*words, "runs/s", *others]) == 4
        assert capsys.readouterr().err.startswith("clusterdp: runs/s: is a sweep. Name an element, as runs/s/0;")


def test_report_of_a_sweep_shows_all_its_elements(built: SweepBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs/s"]) == 0
    assert capsys.readouterr().out.startswith("report-s.html: 4 runs, ")
    assert "<title>0, 1, 2, 3</title>" in Path("report-s.html").read_text()


def test_sweep_function_refuses_a_single_run(built: SweepBuilder) -> None:
    assert len(clusterdp.sweep("runs/s/1")) == 4
    RunBuilder(built.sweep.path.parent / "one").submitted("9")
    with pytest.raises(RunError, match=r"runs/one: is a single run\. `clusterdp status` says how it stands\."):
        clusterdp.sweep("runs/one")


def test_find_run_takes_element_and_array_job_ids(built: SweepBuilder) -> None:
    remember(built.sweep.files, ["7"])
    assert find_run("7_2").path == built.sweep.element(2).path
    assert find_run("7").path == built.sweep.path
    built.elements[1].submitted("9")  # resumed by itself
    assert find_run("9").path == built.sweep.element(1).path
    assert find_run().path == built.sweep.path
    assert sweep_of(find_run("7_2")) == built.sweep
    assert sweep_of(RunDir(built.sweep.path)) is None


def test_cancel_sweep_marks_every_element_before_a_single_scancel(built: SweepBuilder, queue: FakeQueue) -> None:
    marks = f"{built.sweep.path}/2/cancelled {built.sweep.path}/3/cancelled"
    queue.write("scancel", f"/bin/ls {marks} >/dev/null || echo cancelled too early >>{queue.folder}/asked\n")
    assert cancel_sweep(built.sweep) == "runs/s: cancelled 2 elements; no attempt of them starts any more."
    assert [line for line in queue.asked if "cancel" in line] == ["scancel 7"]
    assert not (built.sweep.path / "0/cancelled").exists()
    assert not (built.sweep.path / "1/cancelled").exists()
    queue.answers("7_2|CANCELLED|None|", "7_3|CANCELLED|None|")
    assert "nothing to cancel" in cancel_sweep(built.sweep)
    assert {each.status.state for each in read_sweep(built.sweep).elements[2:]} == {RunState.CANCELLED}


@pytest.mark.parametrize("verb", [cancel_sweep, stop_sweep])
def test_array_of_others_with_a_sweeps_number_is_left_alone(
    built: SweepBuilder, queue: FakeQueue, verb: Callable[[SweepDir], str]
) -> None:
    queue.answers("7_2|RUNNING|None|n1\t/home/me/a.sh\tother", f"7_3|PENDING|x|\t{built.sweep.path}/job.sbatch\tmine")
    assert "; job 7_2 is now other (/home/me/a.sh), which is left alone." in verb(built.sweep)
    assert [line for line in queue.asked if "cancel" in line] == [f"scancel {'7' if verb is cancel_sweep else '7_3'}"]


def test_cancel_of_a_sweep_element_does_not_cancel_its_neighbours(built: SweepBuilder, queue: FakeQueue) -> None:
    cancel(built.sweep.element(2))
    assert [line for line in queue.asked if "cancel" in line] == ["scancel 7_2"]
    assert not (built.sweep.path / "3/cancelled").exists()


def test_cancel_sweep_keeps_its_marks_if_slurm_does_not_answer(built: SweepBuilder, queue: FakeQueue) -> None:
    queue.answers(error="Unable to contact slurm controller")
    queue.write("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(SlurmError, match=r"They are marked.* Job 7 may still run: `clusterdp cancel runs/s` again"):
        cancel_sweep(built.sweep)
    queue.write("scancel", "exit 0\n")
    assert cancel_sweep(built.sweep).endswith("Squeue did not answer, so Slurm was told of all that may live.")
    assert "scancel 7" in queue.asked
    assert (built.sweep.path / "3/cancelled").exists()
    assert not (built.sweep.path / "0/cancelled").exists()


def test_stop_sweep_removes_waiting_elements_and_lets_running_ones_save(built: SweepBuilder, queue: FakeQueue) -> None:
    assert stop_sweep(built.sweep) == "runs/s: 1 element left the queue; 1 that run save and end."
    assert [line for line in queue.asked if "cancel" in line] == ["scancel 7_3"]
    assert (built.sweep.path / "2/stop").exists()


def test_watch_sweep_prints_counts_until_every_element_ends(built: SweepBuilder, queue: FakeQueue) -> None:
    def ends() -> None:
        built.elements[2].attempt("7_2.1").trained(61, 100, 100).finished(100)
        built.elements[3].attempt("7_3.0").trained(1, 100, 100).finished(100)
        queue.answers()

    clock, out = Clock(lambda: None, ends), io.StringIO()
    code = watch_sweep(built.sweep, out, pace=SweepPace(clock=lambda: clock.now, sleep=clock.sleep))
    lines = [line.partition("  ")[2] for line in out.getvalue().splitlines()]
    assert lines[0] == "2 of 4 over: 1 waiting, 1 running, 1 done, 1 failed"
    assert lines[1] == "4 of 4 over: 3 done, 1 failed"
    assert "not done: 1" in out.getvalue()
    assert code == 1


def test_watch_sweep_accepts_an_unrecorded_end_after_the_settling_time(built: SweepBuilder, queue: FakeQueue) -> None:
    queue.answers("7_2|CANCELLED|None|", "7_3|CANCELLED|None|")
    clock, out = Clock(), io.StringIO()
    watch_sweep(built.sweep, out, pace=SweepPace(clock=lambda: clock.now, sleep=clock.sleep))
    assert clock.now >= SweepPace.settle_s
    assert "2 cancelled" in out.getvalue()
    offered = [line.split()[-1] for line in out.getvalue().splitlines() if "--retry" in line]
    assert offered == ["failed", "cancelled"]


def test_sweep_dry_run_lists_elements_to_retry_or_resume_without_submitting(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.answers("7_3|PENDING|Priority|")
    assert main(["sweep", "runs/s", "--retry", "failed", "--dry-run"]) == 0
    said = [f"would go on from its beginning: runs/s/{number}" for number in (1, 2)]
    assert capsys.readouterr().out.splitlines() == said
    queue.answers()
    built.elements[0].attempt("7_0.1").saved(100).finished(100)
    assert main(["sweep", "runs/s", "--by", "test_accuracy", "--top", "2", "--resume", "--dry-run"]) == 0
    said = ["would go on from its beginning: runs/s/2", "would go on from step 100: runs/s/0"]
    assert capsys.readouterr().out.splitlines() == said
    assert not [line for line in queue.asked if line.startswith("sbatch")]


def test_element_without_a_submit_record_gets_its_job_from_the_array(built: SweepBuilder, queue: FakeQueue) -> None:
    for path in built.elements[3].run.events.iterdir():
        path.unlink()
    assert read_sweep(built.sweep).elements[3].status.state is RunState.WAITING
    assert read_sweep(built.sweep).elements[3].history.job == "7_3"


def test_failure_reason_of_an_element_is_in_sweep_rows_status_and_why(
    built: SweepBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    log = built.elements[1].run.attempt("7_1.0").logs / "rank-00000.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Traceback (most recent call last):\n  File 'x', line 1\nValueError: lr too high\n")
    reason = "ValueError: lr too high (rank 0"
    (row,) = [row for row in clusterdp.sweep("runs/s") if row["element"] == 1]
    assert reason in row["why"]
    for words in (["sweep", "runs/s"], ["status", "runs/s"], ["why", "runs/s"]):
        assert main(words) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed  1: ")]
        assert reason in line
    assert main(["sweep", "runs/s", "--csv"]) == 0
    assert reason in capsys.readouterr().out


def test_why_of_a_sweep_prints_state_counts_and_reasons_of_waiting_elements(
    built: SweepBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "runs/s"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("digits  1 waiting, 1 running, 1 done, 1 failed\n")
    assert "waiting  3: " in said
    assert "clusterdp why runs/s/1 " in said
    assert main(["why", "runs/s", "--json"]) == 0
    assert [each["element"] for each in json.loads(capsys.readouterr().out)["elements"]] == [0, 1, 2, 3]


def test_to_retry_takes_ended_elements_in_the_named_state(built: SweepBuilder, queue: FakeQueue) -> None:
    status = read_sweep(built.sweep)
    assert [each.number for each in to_retry(status, "failed")] == [1]
    assert to_retry(status, "cancelled") == to_retry(status, "unsubmitted") == []
    queue.answers("7_1|COMPLETING|None|n1", "7_2|RUNNING|None|n1", "7_3|PENDING|None|")
    with pytest.raises(RunError, match="jobs of elements 1 are still ending"):
        to_retry(status, "failed")
    queue.answers(error="Unable to contact slurm controller")
    with pytest.raises(SlurmError, match="not known which"):
        to_retry(read_sweep(built.sweep), "failed")


def test_sweep_retry_resubmits_failed_elements_as_one_array(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    built.sweep.script(0).write_text("#!/bin/bash\n#SBATCH --array=0-3%2\n")
    built.elements[2].attempt("7_2.1").failed(exit=1)
    built.elements[2].cancelled()
    built.elements[0].attempt("7_0.1").failed(exit=1)
    queue.answers("7_3|PENDING|JobArrayTaskLimit|")
    queue.write("sbatch", "echo 8\n")
    assert main(["sweep", "runs/s", "--retry", "failed"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Resumed job 8_0: {built.sweep.path}/0",
        f"Resumed job 8_1: {built.sweep.path}/1",
    ]
    asked = [line for line in queue.asked if line.startswith("sbatch")]
    assert asked == [f"sbatch --parsable --array=0-1%2 {built.sweep.script(0)}"]
    assert find_run("8_1").path == built.sweep.element(1).path
    queue.answers("7_3|PENDING|Priority|", "8_0|PENDING|Priority|", "8_1|PENDING|Priority|")
    assert main(["sweep", "runs/s", "--retry", "failed"]) == 0
    assert capsys.readouterr().out == "No element is failed.\n"


def test_sweep_retry_names_files_changed_since_the_snapshot(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    code = built.sweep.path / "code"
    code.mkdir()
    (code / "train.py").write_text("bug")
    Path("train.py").write_text("no bug")
    failed = built.elements[1]
    failed.run.code.symlink_to("../code")
    failed.submitted("7_1", dir=str(Path.cwd()))
    built.sweep.script(0).write_text("#!/bin/bash\n#SBATCH --array=0-3\n")
    queue.write("sbatch", "echo 8\n")
    assert main(["sweep", "runs/s", "--retry", "failed"]) == 0
    said = "It runs the code as it was at its submit; train.py has changed since."
    assert capsys.readouterr().out.startswith(said)


def test_sweep_top_resume_refuses_running_elements_and_resumes_the_best_ended_ones(
    built: SweepBuilder, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"entry": "train:main", "params": {"epochs": 3}, "launch": {"python": "python"}}
    for number in (0, 2):
        built.elements[number].run.config.write_text(config.dump(config.from_mapping(values)))
    queue.write("sbatch", "echo 9\n")
    queue.write("squeue", HEADER + """\ncase "$*" in *%F*) ;; *) echo '7_2|RUNNING|None|n1' ;; esac\n""")
    assert main(["sweep", "runs/s", "--top", "2", "--resume", "params.epochs=5"]) == 4
    assert "job 7_2 is RUNNING" in capsys.readouterr().err
    assert not [line for line in queue.asked if line.startswith("sbatch")]
    queue.answers()
    built.elements[2].attempt("7_2.1").trained(61, 100, 100, test_accuracy=0.9).finished(100)
    assert main(["sweep", "runs/s", "--top", "2", "--resume", "params.epochs=5"]) == 0
    scripts = [line.split()[-1] for line in queue.asked if line.startswith("sbatch")]
    assert scripts == [str(built.sweep.path / number / "job.sbatch") for number in ("2", "0")]
    assert config.read_resolved(built.elements[0].run.config)["params"] == {"epochs": 5}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume"], "--resume: say how many of the best"),
        (["params.epochs=3"], r"params.epochs=3: is for elements that go on"),
        (["--top", "0"], "--top 0: is not a number of elements. Write 1 or more."),
        (["--retry", "failed", "--top", "2"], "--top 2: does not go with --retry"),
        (["--retry", "failed", "--by", "loss"], "--by loss: does not go with --retry"),
        (["--dry-run"], "--dry-run: is for --retry and --resume."),
        (["--by", "los"], "--by los: no element has measured it. Did you mean loss?"),
    ],
)
def test_mistaken_sweep_option_is_an_error_with_its_name(
    built: SweepBuilder, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "runs/s", *words]) != 0
    assert said in capsys.readouterr().err


def test_sweep_is_a_single_row_of_list(built: SweepBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == ["s running 1 waiting, 1 running, 1 done, 1 failed".split()]
    for element in built.elements[1:]:
        element.attempt(f"7_{element.run.path.name}.5").finished(100)
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "done"


def row_of(built: SweepBuilder, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """What `clusterdp list --json` says of the sweep, and what it complains about."""
    assert main(["list", "--json", *words]) == 0
    said = capsys.readouterr()
    rows = {row["run"]: row for row in json.loads(said.out)}
    return rows[str(built.sweep.path)], said.err


def test_list_row_of_a_sweep_follows_slurm_states_of_its_elements(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    row, said = row_of(built, capsys)
    assert (row["name"], row["state"], row["as_recorded"], said) == ("digits", "running", False, "")
    assert row["elements"] == {"waiting": 1, "running": 1, "done": 1, "failed": 1}
    queue.answers("7_2|CANCELLED|None|n1", "7_3|CANCELLED|None|")
    row, _ = row_of(built, capsys)
    assert (row["state"], row["why"]) == ("failed", "1 done, 1 failed, 2 cancelled")
    queue.answers()
    assert row_of(built, capsys)[0]["why"] == "1 done, 1 failed, 2 vanished"


def test_list_asks_squeue_once_for_runs_and_sweep_elements(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    RunBuilder(built.sweep.path.parent / "beside").submitted("9")
    queue.answers("7_2|RUNNING|None|n1", "7_3|PENDING|Priority|", "9|PENDING|Priority|")
    assert main(["list", "--state", "waiting", "--json"]) == 0
    (beside,) = json.loads(capsys.readouterr().out)
    assert (beside["name"], beside["slurm_reason"]) == ("digits", "Priority")
    assert [line.split("--jobs=")[1].split()[0] for line in queue.asked] == ["7,9"]
    assert "--array" in queue.asked[0]


def test_list_marks_a_sweep_with_a_question_mark_if_squeue_fails(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.answers(error="Unable to contact slurm controller")
    assert main(["list"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[:2] == ["s", "running?"]
    assert said.err.startswith("clusterdp: squeue: failed (exit 1)")
    assert said.err.endswith("A ? marks what was last recorded.\n")
    assert row_of(built, capsys)[0]["as_recorded"]


def test_list_finds_the_job_of_an_unrecorded_element_in_its_array(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(built.elements[3].run.events)
    queue.answers("7_2|RUNNING|None|n1", "7_3|RUNNING|None|n1")
    assert row_of(built, capsys)[0]["elements"]["running"] == 2


def test_list_omits_and_names_a_sweep_with_a_damaged_table(
    built: SweepBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    (built.sweep.path / "sweep.json").write_text("{")
    assert main(["list"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("No runs of this folder")
    assert said.err.startswith(f"clusterdp: left out: {built.sweep.path}: sweep.json: is not the table of a sweep. ")


def test_tag_filter_does_not_match_the_state_counts_of_a_sweep(
    built: SweepBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert row_of(built, capsys)[0]["note"] == ""
    assert main(["list", "--tag", "failed"]) == 0
    assert capsys.readouterr().out == "No run is meant by these words.\n"
    write_note(built.sweep.files, "failed baseline")
    assert row_of(built, capsys, "--tag", "failed")[0]["note"] == "failed baseline"


def test_resumed_element_has_no_list_row_beside_its_sweep(
    built: SweepBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(built.sweep.files)
    remember(built.elements[0].run)
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["run", "s"]


def test_rm_removes_a_sweep_only_after_all_elements_end(
    built: SweepBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1, 2, 3):
        built.elements[number].run.config.write_text("name: digits\n")
    assert main(["rm", "--yes", "runs/s"]) == 4
    assert "elements 2, 3 are not over" in capsys.readouterr().err
    queue.answers(error="Unable to contact slurm controller")
    assert main(["rm", "--yes", "runs/s"]) == 3
    queue.answers()
    assert main(["rm", "--yes", "runs/s/1"]) == 0
    assert [each.number for each in read_sweep(built.sweep).elements] == [0, 2, 3]
    assert main(["rm", "--yes", "runs/s"]) == 0
    assert not built.sweep.path.exists()


def test_malformed_sweep_table_is_a_one_line_error(built: SweepBuilder) -> None:
    for text in ("", "[]", '{"name": "x"}', '{"name": 1, "elements": {"a": {}}}', '{"name": 1, "elements": 3}'):
        (built.sweep.path / "sweep.json").write_text(text)
        with pytest.raises(RunError, match=r"sweep\.json: is not the table of a sweep"):
            read_sweep(built.sweep)


def test_squeue_is_asked_with_the_array_option_only_for_elements(queue: FakeQueue) -> None:
    queue.answers("7_3|PENDING|Priority|")
    assert job_states(["7_3"])["7_3"].state == "PENDING"
    assert element_states(["7"])["7_3"].state == "PENDING"
    job_states(["9"])
    assert ["--array" in line for line in queue.asked] == [True, True, False]


def test_max_array_size_is_read_from_scontrol_or_defaults_to_1001(queue: FakeQueue) -> None:
    queue.write("scontrol", "echo 'MaxArraySize            = 4001'\n")
    assert max_array_size() == 4001
    queue.write("scontrol", "exit 1\n")
    assert max_array_size() == 1001
