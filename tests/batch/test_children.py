"""Signals and waits of the batch program, in a process of its own: it sets handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from clusterdp import procfs
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, signal, subprocess, sys, time
from clusterdp.batch.processes import children
children.POLL_S = 0.05
children = children.Children(os.environb)
"""


def program(lines: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BEGIN + lines]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)


def said(lines: str) -> str:
    out, _ = program(lines).communicate(timeout=60)
    return out


def test_sigterm_is_counted_by_the_batch_program_but_blocked_in_its_commands() -> None:
    lines = """
os.kill(os.getpid(), signal.SIGTERM)
print(children.run(["bash", "-c", "kill -TERM $$; echo lives"]))
os.kill(os.getpid(), signal.SIGTERM)
print(children.terms, children.take_news(), children.take_news())
subprocess.Popen(["sh", "-c", "sleep 0.2; kill -TERM $PPID"])
print(children.sleep(60), children.terms)
"""
    assert said(lines).splitlines() == ["Answer(code=0, said='lives')", "2 True False", "False 3"]


def test_sleep_returns_early_when_its_condition_holds() -> None:
    assert said("print(children.sleep(60, lambda: True))") == "False\n"
    assert said("print(children.sleep(0))") == "True\n"


def test_command_is_killed_at_its_time_limit_with_exit_code_137() -> None:
    lines = "print(children.run(['sh', '-c', 'echo begun; exec sleep 100'], limit_s=0.5))"
    assert said(lines) == "Answer(code=137, said='begun')\n"


def test_missing_command_has_exit_code_127() -> None:
    assert "Answer(code=127, said='/nope: No such file or directory')" in said("print(children.run(['/nope']))")
    assert "Answer(code=127, said='')" in said("print(children.run(['/nope'], err=False))")


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    with child:  # its output is not read to an end: the timers have it, too
        pass


def waits(pid: int) -> bool:
    """Whether it has started its `sleep`, and sleeps itself."""
    sleepers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    started = bool(sleepers) and Path(f"/proc/{sleepers[0]}/cmdline").read_bytes().startswith(b"sleep")
    return started and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_timer_ends_with_a_killed_batch_program() -> None:
    child = program("print(children.timer(60).pid, flush=True)\nchildren.sleep(60)")
    assert child.stdout
    timer = int(child.stdout.readline())
    wait_for("its wait", lambda: waits(child.pid), 30)
    sleepers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    assert str(timer) in sleepers
    end(child)
    wait_for("their end", lambda: not any(procfs.is_alive(int(pid)) for pid in sleepers), 10)


def test_timer_ends_if_the_batch_program_was_killed_at_its_start() -> None:
    lines = """
from clusterdp.batch.processes import children as module
def late(*_):
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)
parent, module._prctl = os.getpid(), late
children.timer(60)
"""
    child = program(lines)
    assert child.stdout
    timer = int(child.stdout.readline())
    end(child)
    wait_for("its end", lambda: not procfs.is_alive(timer), 10)


def test_suspension_time_of_the_batch_program_is_measured_during_sleep() -> None:
    child = program(
        "print('begun', flush=True); began = time.monotonic(); slept = children.sleep(1)\n"
        "print(slept, children.suspended_s > 0.5, time.monotonic() - began > 2)"
    )
    assert child.stdout
    assert child.stdout.readline() == "begun\n"
    wait_for("its wait", lambda: waits(child.pid), 30)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    subprocess.run(["sleep", "1.2"], check=True)  # the time in which it stands still
    os.kill(child.pid, signal.SIGCONT)
    out, _ = child.communicate(timeout=60)
    assert out == "True True True\n"


def test_own_tools_run_in_the_environment_of_before_launch_setup(tmp_path: Path) -> None:
    for name in ("slurm", "other"):
        (tmp_path / name).mkdir()
        for command in ("srun", "scontrol"):
            (tmp_path / name / command).write_text("")
            (tmp_path / name / command).chmod(0o755)
    lines = f"""
from clusterdp.batch.processes.children import Children
slurm, other = "{tmp_path}/slurm", "{tmp_path}/other"
for before in (slurm, "{tmp_path}/none"):
    after = {{"PATH": other, "LD_LIBRARY_PATH": "/conda", "SLURM_CONF": "/c", "A": "1"}}
    given = {{**after, "CLUSTERDP_BEFORE": "PATH=" + before + "\\nSLURM_CONF=\\nLD_PRELOAD=/x\\n"}}
    found = Children({{name.encode(): value.encode() for name, value in given.items()}})
    print(found.with_srun(["env", "srun", "bash", "srun"])[1] == (slurm if before == slurm else other) + "/srun",
        sorted(found.own.items()), found.environ == {{name.encode(): value.encode() for name, value in after.items()}})
"""
    first, second = said(lines).splitlines()
    path = f"(b'PATH', b'{tmp_path}/slurm')"
    assert first == f"True [(b'A', b'1'), (b'LD_PRELOAD', b'/x'), {path}, (b'SLURM_CONF', b'/c')] True"
    assert second.startswith("True [(b'A', b'1'), (b'LD_LIBRARY_PATH', b'/conda')"), "setup brings Slurm"
