"""`clusterdp list`: the right runs, each as it stands, whatever lies in their folders and whatever Slurm says."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from clusterdp import cli
from clusterdp.operate.find.run_index import remember
from clusterdp.operate.listing import list_runs, look
from clusterdp.operate.listing.filters import make_filters
from clusterdp.operate.listing.list_runs import Wanted
from clusterdp.operate.listing.look import summaries_path, summary_of
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.note import write_note
from clusterdp.operate.record.run_history import read_history
from clusterdp.rundir import Ledger, RunDir, append_line
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def listed(out: io.StringIO | None = None, state: str | None = None, **wanted: Any) -> str:
    """What is printed, and, but for JSON, what is complained about then."""
    out, err = out or io.StringIO(), io.StringIO()
    list_runs.list_runs(Wanted(make_filters(state, None, None, None, time.time()), **wanted), out, err)
    return out.getvalue() + ("" if wanted.get("as_json") else err.getvalue())


def data(**wanted: Any) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(listed(as_json=True, **wanted))
    return runs


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def old(run: RunDir) -> RunDir:
    """As it is when nobody has touched it for long."""
    for path in [run.path, *run.path.rglob("*")]:
        os.utime(path, (0, time.time() - 10 * 86400))
    return run


def done(path: Path, job: str = "7") -> RunDir:
    builder = RunBuilder(path).submitted(job)
    builder.attempt(f"{job}.0").trained(1, 40, total=40).saved(40).finished(40)
    remember(builder.run)
    return old(builder.run)


def live(path: Path, job: str, **submitted: Any) -> RunBuilder:
    builder = RunBuilder(path).submitted(job, **submitted)
    builder.attempt(f"{job}.0").trained(1, 40)
    remember(builder.run)
    return builder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run folders that were read, and not known by their summaries."""
    read: list[str] = []

    def noted(run: RunDir) -> Any:
        read.append(run.path.name)
        return read_history(run)

    monkeypatch.setattr(look, "read_history", noted)
    return read


def test_list_shows_runs_of_the_current_folder_or_all_newest_first(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(elsewhere / "runs/first")
    done(tmp_path / "scratch/second")  # run_dir=
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    done(tmp_path / "other/runs/third")
    assert names(listed()) == ["third"]
    assert names(listed(everywhere=True)) == ["third", f"{tmp_path}/scratch/second", f"{elsewhere}/runs/first"]
    monkeypatch.chdir(elsewhere)
    assert names(listed()) == [f"{tmp_path}/scratch/second", "first"]
    RunBuilder(elsewhere / "runs/copied")  # that is not in the index
    assert names(listed())[0] == "copied"
    monkeypatch.chdir(tmp_path / "scratch")
    assert names(listed()) == ["second"]


def test_list_quotes_odd_run_names_and_prefixes_ambiguous_ones_with_their_folder(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("plain", "two words", "123", "shadowed", "-n", "swept/3"):
        done(elsewhere / "runs" / name)
    done(elsewhere / "beside")
    (elsewhere / "shadowed").mkdir()
    said = [line.rpartition("  done")[0].strip() for line in listed().splitlines()[1:]]
    assert said == ["beside", "swept/3", "runs/-n", "runs/shadowed", "runs/123", "'two words'", "plain"]


def test_list_asks_squeue_once_and_shows_the_states_of_clusterdp_status(elsewhere: Path, queue: FakeQueue) -> None:
    runs = [live(elsewhere / "runs" / name, job).run for job, name in enumerate("abcd", start=10) for job in [str(job)]]
    done(elsewhere / "runs/e", "14")
    queue.answers("10|RUNNING|None|n1", "11|PENDING|Priority|", "12|NODE_FAIL|None|n1")
    found = {run["run"]: run for run in data()}
    assert queue.asked == ["squeue --states=all --jobs=10,11,12,13 --format=%i|%T|%r|%N\t%o\t%j"]
    for run in runs:
        history = read_history(run)
        now = json.loads(json.dumps(summary_of(history, current_status(history), time.time())))
        assert found[str(run.path)] == now
    assert [run["state"] for run in found.values()] == ["done", "vanished", "failed", "waiting", "running"]
    assert names(listed(state="waiting,running")) == ["b", "a"]


def test_list_asks_squeue_of_each_live_cluster_once(
    elsewhere: Path, queue: FakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    fake = tmp_path / "fake"
    for name in ("bin", "state"):
        (fake / name).mkdir(parents=True)
    for name in ("slurm.conf", "up", "state/shape.json"):
        (fake / name).touch()
    for folder in (fake, fake / "bin"):
        folder.chmod(0o700)
    there = FakeQueue(fake / "bin")
    there.answers("7|PENDING|Resources|")
    queue.answers("7|RUNNING|None|n1")
    live(elsewhere / "runs/real", "7")
    live(elsewhere / "runs/fake1", "7", cluster=str(fake / "slurm.conf"))
    live(elsewhere / "runs/fake2", "8", cluster=str(fake / "slurm.conf"))
    live(elsewhere / "runs/gone", "7", cluster=str(tmp_path / "gone/slurm.conf"))
    before = dict(os.environ)
    states = {Path(run["run"]).name: run["state"] for run in data()}
    assert states == {"gone": "vanished", "fake2": "vanished", "fake1": "waiting", "real": "running"}
    assert (len(queue.asked), len(there.asked)) == (1, 1)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'slurm_load_jobs error: no answer' >&2; exit 1\n", "squeue: failed (exit 1)"),
        ("exec sleep 60\n", "squeue: no answer within 0 s"),
        ("echo Welcome to the cluster\n", "squeue: answered 'Welcome to the cluster', not rows"),
        (None, "there is no squeue here that knows the cluster of 2 runs"),
    ],
)
def test_list_without_a_squeue_answer_marks_recorded_states_with_a_question_mark(
    elsewhere: Path, queue: FakeQueue, body: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_runs, "TIMEOUT_S", 0.3)
    monkeypatch.setenv("PATH", f"{queue.folder}:/usr/bin:/bin")
    if body is None:
        (queue.folder / "squeue").unlink()
        monkeypatch.setenv("PATH", str(queue.folder))
    else:
        queue.write("squeue", body)
    done(elsewhere / "runs/over")
    for name, job in (("a", "8"), ("b", "9")):
        live(elsewhere / "runs" / name, job)
    *_, complaint = text = listed().splitlines()
    assert [line.split()[:2] for line in text[1:-1]] == [["b", "running?"], ["a", "running?"], ["over", "done"]]
    assert complaint.startswith(f"clusterdp: {said}")
    assert complaint.endswith("A ? marks what was last recorded.")
    assert not [run["run"] for run in data() if run["as_recorded"] == run["over"]]


def test_list_shows_and_caches_a_done_run_with_a_requeue_without_squeue(elsewhere: Path, reads: list[str]) -> None:
    builder = RunBuilder(elsewhere / "runs/a").submitted()
    builder.attempt("7.0").stopped(20).requeued("preempted")
    builder.attempt("7.1").restored(20).trained(21, 40).finished(40)
    old(builder.run)
    for _ in range(2):
        assert [line.split()[1] for line in listed().splitlines()[1:]] == ["done"]
    assert reads == ["a"]


def test_repeated_list_reads_an_ended_run_once_until_the_cache_is_deleted(
    elsewhere: Path, reads: list[str], queue: FakeQueue
) -> None:
    for name in "ab":
        done(elsewhere / "runs" / name)
    first = listed()
    assert sorted(reads) == ["a", "b"]
    assert listed() == first
    assert sorted(reads) == ["a", "b"]
    summaries_path().unlink()
    assert listed() == first
    assert sorted(reads) == ["a", "a", "b", "b"]
    assert queue.asked == []


def requeued(run: RunDir) -> None:
    run.attempt("7.1").logs.mkdir(parents=True)
    Ledger(run, "7.1", "batch").write("started", job="7", restart=1)


def resumed(run: RunDir) -> None:
    Ledger(run, "submit-8", "submit").write("submitted", job="8", name="digits")


def noted(run: RunDir) -> None:
    write_note(run, "x")


def cancelled(run: RunDir) -> None:
    run.cancelled.write_text("1\n")


def replaced_by_another(run: RunDir) -> None:
    shutil.rmtree(run.path)
    builder = RunBuilder(run.path).submitted("9")
    builder.attempt("9.0").trained(1, 5).failed()
    old(run)


@pytest.mark.parametrize("how", [requeued, resumed, noted, cancelled, replaced_by_another])
def test_list_reads_an_ended_run_again_after_a_change_in_its_folder(
    elsewhere: Path, reads: list[str], queue: FakeQueue, how: Any
) -> None:
    run = done(elsewhere / "runs/a")
    before = data()
    how(run)
    after = data()
    assert reads == ["a", "a"]
    assert after != before


def test_list_does_not_cache_an_ended_run_written_just_now(elsewhere: Path, reads: list[str], queue: FakeQueue) -> None:
    run = done(elsewhere / "runs/a")
    os.utime(run.events)  # just now: the last words may not be seen yet
    listed()
    listed()
    assert reads == ["a", "a"]


def test_list_caches_a_vanished_run_with_an_old_folder(elsewhere: Path, reads: list[str], queue: FakeQueue) -> None:
    run = live(elsewhere / "runs/a", "7").run
    assert "vanished" in listed()
    old(run)
    queue.answers(error="slurm_load_jobs error: no answer")
    assert "running?" in listed()
    queue.answers()
    for _ in range(3):
        assert "vanished" in listed()
    assert len(reads) == 3
    assert len(queue.asked) == 3


def test_list_on_a_terminal_reads_and_shows_only_twenty_runs(elsewhere: Path, reads: list[str]) -> None:
    for i in range(30):
        done(elsewhere / "runs" / f"r{i:02}")
    for gone in ("r28", "r01"):
        shutil.rmtree(elsewhere / "runs" / gone)
    lines = listed(Terminal()).splitlines()
    assert len(lines) == 22
    assert "8 more; -n 0 lists all" in lines[-1]
    assert len(reads) == 20
    assert len(listed().splitlines()) == 29  # a program wants all
    assert "r29" in listed(Terminal(), limit=1).splitlines()[1]
    assert "27 more" in listed(limit=1)
    assert len(data(limit=3)) == 3
    assert "27 more" in listed(limit=1, state="done")
    assert len(listed(Terminal(), limit=0).splitlines()) == 29


def test_list_skips_non_run_folders_and_removed_runs_of_the_index(elsewhere: Path) -> None:
    done(elsewhere / "runs/good")
    half = RunDir(elsewhere / "runs/half")
    half.events.mkdir(parents=True)
    RunBuilder(elsewhere / "runs/.x.removing").submitted()
    (elsewhere / "runs/.gitignore").write_text("*\n")
    (elsewhere / "runs/nothing").mkdir()
    newer = done(elsewhere / "runs/newer")
    append_line(newer.events / "7.0-batch.jsonl", {"time": 2e9, "event": "teleported", "attempt": "7.0", "x": {}})
    for gone in ("gone", "half/file"):
        remember(RunDir(elsewhere / "runs" / gone))
    (half.path / "file").write_text("")
    assert {line.split()[0]: line.split()[1] for line in listed().splitlines()[1:]} == {
        "good": "done",
        "half": "waiting",
        "newer": "done",
    }


def test_list_names_an_unreadable_run_and_shows_all_readable_ones(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(elsewhere / "runs/a")
    done(elsewhere / "runs/b")
    stamp_of = look.stamp_of

    def denied(run: str) -> tuple[str, float]:
        if run.endswith("/a"):
            raise PermissionError(13, "Permission denied", run)
        return stamp_of(run)

    monkeypatch.setattr(look, "stamp_of", denied)
    text = listed()
    assert f"clusterdp: left out: {elsewhere}/runs/a: Permission denied.\n" in text
    assert text.splitlines()[1].startswith("b ")
    assert len(text.splitlines()) == 3


def test_list_names_a_hanging_run_folder_and_shows_all_responsive_ones(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(elsewhere / "runs/a")
    done(elsewhere / "runs/b")
    never, stamp_of = threading.Event(), look.stamp_of

    def hangs(run: str) -> tuple[str, float]:
        if run.endswith("/a"):
            never.wait()
        return stamp_of(run)

    monkeypatch.setattr(look, "stamp_of", hangs)
    monkeypatch.setattr(list_runs.read_in_time, "__defaults__", (0.3,))
    before = set(threading.enumerate())
    try:
        text = listed()
    finally:
        never.set()
        for thread in set(threading.enumerate()) - before:
            thread.join()
    assert text.splitlines()[1].startswith("b ")
    assert text.splitlines()[2] == (f"clusterdp: left out because they did not answer within 5 s: {elsewhere}/runs/a.")


def test_list_waits_at_most_twice_for_a_hung_file_system(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(9):
        remember(RunDir(elsewhere / f"runs/{i}"))
    batches: list[int] = []

    def silent(paths: list[str], read: Any, patience_s: float = 5) -> tuple[dict[str, Any], list[str]]:
        batches.append(len(paths))
        return {}, list(paths)

    monkeypatch.setattr(list_runs, "read_in_time", silent)
    assert "did not answer within 5 s" in listed(limit=2)
    assert batches == [2, 7, 0]


def test_interrupted_list_caches_the_runs_read_before_the_interrupt(
    elsewhere: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done(elsewhere / "runs/a")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(list_runs, "ask_squeue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            listed()
    listed()
    assert reads == ["a"]


def test_list_without_matching_runs_prints_the_reason_or_empty_json(elsewhere: Path, tmp_path: Path) -> None:
    assert listed() == "No runs of this folder; `clusterdp list --all` has all.\n"
    assert listed(everywhere=True) == "No runs yet.\n"
    assert listed(as_json=True) == "[]\n"
    done(elsewhere / "runs/a")
    assert listed(state="failed") == "No run is meant by these words.\n"


def test_list_command_takes_state_name_tag_since_and_all_options(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_note(done(elsewhere / "runs/a"), "baseline \x1b[2J")
    done(elsewhere / "runs/b")
    several = ["--state", "done", "--tag=BASELINE", "--since", "3d", "--all"]
    for words in (["--tag", "baseline"], ["--name", "a"], several):
        assert cli.main(["list", *words]) == 0
        (_, row) = capsys.readouterr().out.splitlines()
        assert row.split()[:6] == ["a", "done", "1", "40/40", "loss", "0.025"]
        assert row.endswith("ago  baseline")
    assert cli.main(["list", "--since", "2999-01-01"]) == 0
    assert cli.main(["list", "-n", "-1"]) == 2
    assert cli.main(["list", "--state", "don"]) == 2
    assert "-n -1: is not a number" in (err := capsys.readouterr().err)
    assert "Did you mean done?" in err
