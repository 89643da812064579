"""Verbs that read, on a cluster behind a real sshd: output, exit codes, terminals, connections."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from clusterdp.errors import RemoteError
from tests.remote.conftest import make_project
from tests.remote.sshd import Sshd
from tests.waiting import wait_for


def there(sshd: Sshd, project: Path) -> Path:
    return sshd.home / "clusterdp" / project.name


@pytest.fixture(scope="module")
def project(sshd: Sshd) -> Path:
    return make_project(sshd.here / "reads")


@pytest.fixture(scope="module")
def run(sshd: Sshd, project: Path) -> str:
    """A run there that is done."""
    done = sshd.on("submit", "c.yaml", "run_dir=runs/first", "--watch", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    return "runs/first"


def test_reads_answer_as_on_the_login_node(sshd: Sshd, project: Path, run: str) -> None:
    status = json.loads(sshd.on("status", run, "--json", cwd=project).stdout)
    assert (status["state"], status["run"]) == ("done", str(there(sshd, project) / run))
    assert "trained" in sshd.on("logs", run, cwd=project).stdout
    assert "first" in sshd.on("list", cwd=project).stdout
    for verb in ("why", "goodput"):
        assert sshd.on(verb, run, cwd=project).returncode == 0


def test_exit_code_and_error_of_the_verb_reach_this_side(sshd: Sshd, project: Path) -> None:
    done = sshd.on("status", "runs/none", cwd=project)
    assert done.returncode == 4
    assert done.stderr.startswith("clusterdp: runs/none: no such run folder")
    assert done.stdout == ""


def test_verb_takes_one_ssh_process_beside_the_check(sshd: Sshd, project: Path) -> None:
    before = len(sshd.calls)
    sshd.on("list", cwd=project)
    assert [line.split()[:2] for line in sshd.calls[before:]] == [["-O", "check"], ["-o", "BatchMode=yes"]]


def test_site_profile_names_the_default_host(sshd: Sshd, project: Path, run: str) -> None:
    profile = sshd.here / "config/clusterdp/site.yaml"
    before = profile.read_text()
    try:
        profile.write_text(f"on: cluster\n{before}")
        assert "done" in sshd.clusterdp("status", run, cwd=project).stdout
        local = sshd.clusterdp("--on", "here", "status", run, cwd=project)
        assert local.returncode == 4
        assert sshd.clusterdp("submit", "c.yaml", "--cluster", "local", "--dry-run", cwd=project).returncode == 0
    finally:
        profile.write_text(before)


def test_config_with_the_key_on_is_refused(sshd: Sshd, project: Path) -> None:
    (project / "on.yaml").write_text("command: 'true'\non: cluster\n")
    done = sshd.clusterdp("submit", "on.yaml", "--dry-run", cwd=project)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "on.yaml:2: on: there is no such key" in done.stderr and "site profile" in done.stderr


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "$(x)", ""])
def test_host_with_shell_or_option_characters_is_refused(sshd: Sshd, host: str) -> None:
    before = len(sshd.calls)
    done = sshd.clusterdp(f"--on={host}", "list")
    assert (done.returncode, len(sshd.calls)) == (2, before), done.stderr


@pytest.mark.parametrize(
    ("key", "value"), [("python", "python; touch x"), ("python", "a b"), ("folder", "runs"), ("folder", "$SCRATCH/x")]
)
def test_setting_with_shell_characters_is_refused(sshd: Sshd, project: Path, key: str, value: str) -> None:
    file = sshd.here / "config/clusterdp/hosts/cluster.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"remote: {{{key}: '{value}'}}\n")
    try:
        done = sshd.on("list", cwd=project)
        assert done.returncode == 2
        assert done.stderr.startswith(f"clusterdp: remote.{key}: ") and done.stderr.count("\n") == 1
    finally:
        file.unlink()


@pytest.mark.parametrize("word", ["$(touch x)", "a'b\"c", "`x`", "!!", "ä\tö", "*", "~", "\\n"])
def test_words_reach_the_verb_unchanged(sshd: Sshd, project: Path, word: str) -> None:
    done = sshd.on("status", word, cwd=project)
    local = sshd.clusterdp("status", word, cwd=project)
    assert done.stderr.partition(": no such")[0] == local.stderr.partition(": no such")[0]


def test_width_and_colours_follow_the_terminal_here(sshd: Sshd, project: Path, run: str) -> None:
    def screen(columns: int, **environ: str) -> str:
        main, end = pty.openpty()
        words = ["clusterdp", "--on", "cluster", "why", run]
        env = {**sshd.environ, "TERM": "xterm", "COLUMNS": str(columns), **environ}
        process = subprocess.Popen(words, cwd=project, env=env, stdin=end, stdout=end, stderr=end)
        os.close(end)
        seen = b""
        try:
            while data := os.read(main, 4096):
                seen += data
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
        os.close(main)
        return seen.decode()

    assert "\x1b[" in screen(80)
    assert "\x1b[" not in screen(80, NO_COLOR="1")
    assert max(map(len, screen(40, NO_COLOR="1").splitlines())) < max(map(len, screen(200, NO_COLOR="1").splitlines()))


def test_interrupted_watch_leaves_the_job_running(sshd: Sshd, project: Path) -> None:
    (project / "train.py").write_text("import time\ntime.sleep(600)\n")
    assert sshd.on("submit", "c.yaml", "run_dir=runs/long", cwd=project).returncode == 0
    words = ["clusterdp", "--on", "cluster", "watch", "runs/long"]
    watch = subprocess.Popen(
        words, cwd=project, env=sshd.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watch.stdout
    watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    said, _ = watch.communicate(timeout=60)
    assert watch.returncode == 130
    assert "goes on without you" in said
    status = json.loads(sshd.on("status", "runs/long", "--json", cwd=project).stdout)
    assert status["state"] in ("waiting", "running")
    wait_for("no watch there", lambda: "there" not in processes("watch"), 20)
    assert sshd.on("cancel", "runs/long", cwd=project).returncode == 0


def processes(word: str) -> str:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return "\n".join(line for line in listed.splitlines() if "clusterdp.remote.there" in line and word in line)


def test_kept_answer_is_shown_with_its_age_without_a_connection(sshd: Sshd, project: Path, run: str) -> None:
    fresh = sshd.on("status", run, cwd=project)
    sshd.close_master()
    try:
        kept = sshd.on("status", run, cwd=project)
        other = sshd.on("status", "runs/other", cwd=project)
    finally:
        sshd.open_master()
    assert kept.stdout == fresh.stdout
    assert kept.returncode == other.returncode == RemoteError.exit_code
    age, remedy = kept.stderr.splitlines()
    assert age.startswith("clusterdp: as of ") and age.endswith("for the cluster cannot be reached")
    assert remedy == other.stderr.strip() == "clusterdp: cluster: there is no open connection. Type: ssh -fN cluster"


def test_kept_answers_are_private(sshd: Sshd, project: Path, run: str) -> None:
    sshd.on("status", run, cwd=project)
    files = [path for path in (sshd.here / "cache").rglob("*") if path.is_file()]
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_report_and_plot_make_their_file_here(sshd: Sshd, project: Path, run: str) -> None:
    done = sshd.on("report", run, cwd=project)
    assert done.stdout.startswith("report-first.html: 1 run, "), done.stderr
    assert (project / "report-first.html").read_text().startswith("<!doctype html>")
    assert sshd.on("report", run, "-o", "page.html", cwd=project).returncode == 0
    assert (project / "page.html").exists()
    assert not list(there(sshd, project).glob("*.html"))


def test_cut_answer_is_an_error_and_not_kept(sshd: Sshd, project: Path, run: str) -> None:
    done = sshd.on("why", run, cwd=project, SSH_CUT="120")
    assert done.returncode == RemoteError.exit_code
    assert "the answer is not whole" in done.stderr
    sshd.close_master()
    try:
        assert sshd.on("why", run, "--json", cwd=project).stdout == ""
    finally:
        sshd.open_master()
