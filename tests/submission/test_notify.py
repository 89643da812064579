"""notify: who is told what, and that a job neither fails nor waits for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.receiver import receiving
from tests.submission.conftest import RunScript, Stubs, cause, requeues, worker
from tests.waiting import wait_for

ALL = ["end", "failure", "hang", "requeue"]
CURL = """#!/bin/bash
echo curl >>"$STUBS/order"
cat >>"$STUBS/posted"
cat /proc/[0-9]*/cmdline >"$STUBS/processes" 2>/dev/null
env >"$STUBS/environment"
[ ! -e "$STUBS/on.curl" ] || . "$STUBS/on.curl"
printf 200
"""
SECRET = f"T0/B0/{os.getpid()}x0123456789"
TOLD = 'printf "%s\\n" "$CLUSTERDP_EVENT $CLUSTERDP_CAUSE" >>"$STUBS/told"; cat >>"$STUBS/told"'


@pytest.fixture(autouse=True)
def _time_passes(stubs: Stubs) -> None:
    """The stand-in for sleep returns at once: not while a message is sent, nor while nothing hangs."""
    stubs.on("sleep", 'case $1 in 10 | 60) exec /bin/sleep "$1" ;; esac')


@pytest.fixture
def webhook(tmp_path: Path, stubs: Stubs) -> dict[str, object]:
    """A webhook, and a stand-in for curl."""
    file = tmp_path / "hook"
    file.write_text(f"https://hooks.example.org/{SECRET}\n")
    (stubs.folder / "curl").write_text(CURL)
    (stubs.folder / "curl").chmod(0o755)
    return {"webhook_file": str(file), "on": ALL}


@pytest.fixture
def command() -> dict[str, object]:
    """A command that writes down what it is told."""
    return {"command": ["bash", "-c", TOLD], "on": ALL}


def told(stubs: Stubs) -> list[str]:
    """Event, cause and text of each, without the line that names a verb of clusterdp."""
    path = stubs.folder / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    assert all(line.startswith("clusterdp ") and line.endswith("/run") for line in lines[2::3])
    return [f"{about}: {text}" for about, text in zip(lines[::3], lines[1::3], strict=True)]


def test_webhook_post_is_valid_json_with_special_characters_in_name_and_error(
    run_script: RunScript, tmp_path: Path
) -> None:
    name = 'it\'s "q" \\ \\n <!channel> & ünïcode ☃ $HOME `id`'
    program = "printf 'ValueError: \\tüber \\377 \"x\" \\\\ end\\n' >$CLUSTERDP_LOGS/rank-00000.out; exit 3"
    values = {"name": name, "command": ["bash", "-c", program], "restart": {"max_crashes": 0}}
    with receiving() as server:
        (tmp_path / "hook").write_text(f"{server.url}\r\n")
        done = run_script({**values, "notify": {"webhook_file": str(tmp_path / "hook")}})
    assert done.returncode == 3
    assert "notify" not in done.stderr
    assert b"<" not in server.bodies[0]
    said, verb = server.texts()[0].splitlines()
    assert said == (
        f"{name} (job 7): failed: crashed at its start (exit 3): ValueError:  über   x    end; "
        "restart.max_crashes allows no more than 0"
    )
    assert verb == f"clusterdp why {tmp_path}/run"


def test_webhook_http_error_prints_one_line_and_the_job_is_done(run_script: RunScript, tmp_path: Path) -> None:
    with receiving() as server:
        server.status = 404
        (tmp_path / "hook").write_text(server.url)
        done = run_script({"command": "true", "notify": {"webhook_file": str(tmp_path / "hook")}})
    assert (done.returncode, cause(tmp_path)) == (0, "done")
    assert done.stderr == "clusterdp: notify: the webhook answers with HTTP status 404. Is its address still right?\n"


def test_webhook_address_reaches_only_curl(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, webhook: dict[str, object]
) -> None:
    done = run_script({"command": "true", "notify": webhook})
    assert SECRET in (stubs.folder / "posted").read_text()
    assert "curl" in (stubs.folder / "processes").read_text()
    seen = [done.stdout, done.stderr, *((stubs.folder / name).read_text() for name in ("processes", "environment"))]
    seen += [path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(SECRET in text for text in seen)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit 127", "there is no curl on"),
        ("exit 6", "was not reached from"),
        ("unreadable", "notify.webhook_file: cannot be read on"),
        ("hangs", "ended, because it took longer than 10 s"),
    ],
)
def test_failed_webhook_prints_one_line_and_keeps_the_jobs_exit_code(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, webhook: dict[str, object], how: str, said: str
) -> None:
    if how == "unreadable":
        (tmp_path / "hook").unlink()
    elif how == "hangs":  # the 10 s are over as soon as curl has begun
        stubs.on("curl", 'trap "" TERM; echo $$ >"$STUBS/pid"; exec tail -f /dev/null')
        stubs.on("sleep", '[ "$1" != 10 ] || until [ -s "$STUBS/pid" ]; do :; done')
    else:
        stubs.on("curl", how)
    values = {
        "command": ["bash", "-c", "exit 9"],
        "restart": {"max_crashes": 0},
        "notify": {**webhook, "on": ["failure"]},
    }
    done = run_script(values)
    assert done.returncode == 9
    [line] = [line for line in done.stderr.splitlines() if "for the last time" not in line]
    assert line.startswith("clusterdp: notify") and said in line
    (ledger,) = (tmp_path / "run").glob("events/*-batch.jsonl")
    assert '"event":"told"' in ledger.read_text().splitlines()[-1], "its time is the attempt's"
    if how == "hangs":
        pid = (stubs.folder / "pid").read_text().strip()
        wait_for("its end", lambda: not Path(f"/proc/{pid}").exists(), 10)


def test_requeue_notice_is_sent_after_the_requeue_and_survives_sigterm(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, webhook: dict[str, object]
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    stubs.on("scontrol", 'echo "${1%% *}" >>"$STUBS/order"')
    stubs.on("curl", 'kill -TERM $$ $PPID; echo lives >>"$STUBS/order"; exit 1')  # so does a requeue, to all
    done = run_script({**worker(tmp_path, "requeue term 5"), "notify": webhook})
    assert done.returncode == 0
    assert (stubs.folder / "order").read_text().split()[-3:] == ["requeue", "curl", "lives"]
    assert "preempted at step 5; it is requeued" in (stubs.folder / "posted").read_text()
    assert requeues(stubs) == ["requeue 7"]


def test_refused_requeue_sends_a_failure_notice(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, command: dict[str, object]
) -> None:
    stubs.answer("RUNNING", "None", requeue="Unable to contact slurm controller", code=1)
    stubs.on("sleep", '[ "$(grep -c requeue "$STUBS/scontrol.calls")" -lt 7 ] || exec /bin/sleep "$1"')
    run_script({**worker(tmp_path, "requeue time 5"), "notify": {**command, "on": ["failure"]}})
    assert told(stubs) == [
        "failure timeout: job (job 7): failed: out of time at step 5, and Slurm has refused to requeue it"
    ]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("done finished 9", ["end done: job (job 7): done at step 9"]),
        ("stop user 5", ["end stopped: job (job 7): stopped, as it was asked to, at step 5"]),
        ("stop entry 0", ["failure stopped: job (job 7): failed: stopped for good: a mistake in its config or code"]),
        ("stop cancelled 0", []),
        ("overtaken claim 0", []),
    ],
)
def test_run_end_sends_at_most_one_notice_per_job(
    run_script: RunScript,
    stubs: Stubs,
    tmp_path: Path,
    command: dict[str, object],
    outcome: str,
    expected: list[str],
) -> None:
    values = {**worker(tmp_path, outcome), "notify": command}
    run_script(values)
    run_script(values, restart=1)  # Slurm requeued it all the same: it finds the run over
    assert told(stubs) == expected
    if outcome.startswith("done"):
        run_script(values, job=8)
        assert told(stubs) == [*expected, expected[0].replace("job 7", "job 8")]


def test_failure_notice_names_the_exhausted_restart_limit(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, command: dict[str, object]
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    limits = {"max_attempts": 1}
    run_script({**worker(tmp_path, "requeue term 5"), "restart": limits, "notify": {**command, "on": ["failure"]}})
    assert told(stubs) == [
        "failure gave-up: job (job 7): failed: gave up at step 5; 1 attempt(s), where restart.max_attempts is 1"
    ]


def test_next_attempt_sends_the_requeue_notice_missed_by_the_previous_attempt(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, command: dict[str, object]
) -> None:
    stubs.answer("COMPLETING", "None")
    run_script({**worker(tmp_path, "requeue term 5"), "notify": command})
    assert told(stubs) == []
    run_script({**worker(tmp_path, None), "notify": command}, restart=1)
    assert told(stubs) == ["requeue preempted: job (job 7): preempted; it is requeued"]


HANGS = 'echo "rank 1 is behind" >$CLUSTERDP_LOGS/../hang.txt; until [ -s $STUBS/told ]; do /bin/sleep 0.01; done; '


def test_hung_job_sends_one_notice_before_it_ends(
    run_script: RunScript, stubs: Stubs, command: dict[str, object]
) -> None:
    stubs.on("sleep", '[ "$1" != 60 ] || exec /bin/sleep 0.02\n[ "$1" != 10 ] || exec /bin/sleep 10')
    ends_hung = "touch $CLUSTERDP_LOGS/../hung; exit 1"
    run_script({"command": ["bash", "-c", HANGS + ends_hung], "notify": {**command, "on": ["hang"]}})
    assert told(stubs) == ["hang hung: job (job 7): hangs: rank 1 is behind"]


def test_events_missing_from_notify_on_send_no_notice(
    run_script: RunScript, stubs: Stubs, command: dict[str, object]
) -> None:
    values = {"command": ["bash", "-c", "exit 9"], "restart": {"max_crashes": 0}}
    assert run_script({**values, "notify": {**command, "on": ["end", "hang"]}}).returncode == 9
    assert told(stubs) == []


def test_notify_command_words_reach_the_program_without_shell_expansion(run_script: RunScript, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-c",
        "import sys; open(sys.argv[1], 'w').write(sys.argv[2])",
        "it's $(here)",
        "`id` $HOME;",
    ]
    assert run_script({"command": "true", "notify": {"command": words}}).returncode == 0
    assert (tmp_path / "run/code/it's $(here)").read_text() == "`id` $HOME;"
