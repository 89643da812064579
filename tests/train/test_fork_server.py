"""The fork server of a node, and the tasks that stand for its ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from clusterdp import procfs
from clusterdp.batch.nodes import task
from clusterdp.train.process import fork_server
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has a fork server")
# A program as clusterdp.train.worker, which loads little, and stays until the end of stdin: a task that comes when all
# others have ended starts a server of its own.
PROGRAM = """
import os, select, signal, sys
from clusterdp.batch.nodes import task
from clusterdp.train.process import fork_server, reserve
for number in task.SIGNALS if "RESETS" in os.environ else ():
    signal.signal(number, signal.SIG_DFL)
reserve.LOADED = os.environ.get("LOADED", "json").split()
fork_server.enter()
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
task.unblock()
rank = os.environ["RANK"]
exec(os.environ["DOES"])
sys.stdout.flush()
sys.stdin.read()
"""
Start = Callable[..., "list[subprocess.Popen[str]]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a task for each of two ranks. own: variables of the second one."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "program.py").write_text(PROGRAM)

    def tasks(
        does: str,
        own: dict[str, str] | None = None,
        binds: Sequence[set[int]] = (set(), set()),
        umasks: Sequence[int] = (-1, -1),
        **variables: str,
    ) -> list[subprocess.Popen[str]]:
        words = [sys.executable, "-I", "-S", task.__file__, *program_of(tmp_path)]
        environ = {**os.environ, "DOES": does, task.WANTED: name_of(tmp_path), "LOCAL_WORLD_SIZE": "2", **variables}
        environ["PYTHONPATH"] = f"{tmp_path}:{Path(__file__).parents[2]}"
        pipe, before = subprocess.PIPE, os.sched_getaffinity(0)
        streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True}
        for rank, cpus, umask in zip("01", binds, umasks, strict=True):
            more = {"RANK": rank, "LOCAL_RANK": rank, **(own if own and rank == "1" else {})}
            os.sched_setaffinity(0, cpus or before)
            process = subprocess.Popen(
                words, env={**environ, **more}, cwd=tmp_path, start_new_session=True, umask=umask, **streams
            )
            os.sched_setaffinity(0, before)
            started.append(process)
        return started

    yield tasks
    for each in started:
        each.kill()
        each.wait()
        for stream in (each.stdin, each.stdout, each.stderr):
            if stream:
                stream.close()


def name_of(folder: Path) -> str:
    return f"{os.getpid()}-{folder.name}"


def program_of(folder: Path) -> list[str]:
    return [sys.executable, "-u", str(folder / "program.py")]


def told(tasks: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Returns the words of the line that each rank prints."""
    said = [line(each).split() for each in tasks]
    assert ended(tasks) == [0, 0]
    assert [each.stderr and each.stderr.read() for each in tasks] == ["", ""]
    return said


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def ended(tasks: list[subprocess.Popen[str]]) -> list[int]:
    """Ends stdin, and returns the exit codes."""
    for each in tasks:
        assert each.stdin
        each.stdin.close()
    return [each.wait(60) for each in tasks]


def test_ranks_are_forked_from_one_server_with_their_own_variables(start: Start) -> None:
    does = "print(rank, os.environ['OWN'], os.getenv('LOCAL_RANK'), os.getppid(), os.getpgrp() == os.getpid())"
    one, two = told(start(does, {"OWN": "second"}, OWN="first"))
    assert [one[:3], two[:3]] == [["0", "first", "0"], ["1", "second", "1"]]
    assert one[3] == two[3] and one[4] == two[4] == "True"


def test_rank_shows_its_variables_in_proc(start: Start) -> None:
    does = "words = open('/proc/self/environ').read().split(chr(0))\n"
    does += "print(*[each for each in words if each.startswith(('RANK=', 'MORE=', 'CLUSTERDP_'))])"
    shown = told(start(does, {"MORE": "x" * 3000}))
    assert [[word for word in each if word.startswith("RANK=")] for each in shown] == [["RANK=0"], ["RANK=1"]]
    assert "MORE=" + "x" * 3000 in shown[1] and not [word for word in shown[0] if word.startswith("MORE=")]
    assert not [word for word in shown[0] if word.startswith((task.SERVES, task.ROOM))]


def test_task_and_server_show_no_rank(start: Start) -> None:
    tasks = start("print(os.getppid())")
    server = int(line(tasks[0]))
    for pid in (server, *(each.pid for each in tasks)):
        assert not set(task.OF_RANK) & set(procfs.environ(pid)) and procfs.environ(pid)
    assert [procfs.name(pid) for pid in (server, tasks[0].pid)] == ["fork-server", "task"]


def test_rank_has_files_folder_and_umask_of_its_task(start: Start, tmp_path: Path) -> None:
    does = "print(sys.stdin.readline().strip(), os.getcwd(), os.umask(0), *sorted(os.listdir('/proc/self/fd')))"
    tasks = start(does, umasks=(0o027, 0o007))
    for each in tasks:
        assert each.stdin
        each.stdin.write(f"{each.pid}\n")
        each.stdin.flush()
    common = [str(tmp_path), "0", "1", "2", "3"]  # 3 is that of the listing
    one, two = told(tasks)
    assert [one.pop(2), two.pop(2)] == [str(0o027), str(0o007)]
    assert [one, two] == [[str(each.pid), *common] for each in tasks]


def test_rank_handles_signals_as_its_task_did(start: Start) -> None:
    numbers = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler, signal.SIGCHLD: signal.SIG_DFL}
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]  # as under nohup
    does = "print(*[getattr(signal.getsignal(number), '__name__', signal.getsignal(number)) for number in (1, 2, 17)])"
    handlers = [signal.SIG_IGN if number in ignored else handler for number, handler in numbers.items()]
    expected = [str(getattr(each, "__name__", each)) for each in handlers]
    assert told(start(does)) == [expected, expected]


def test_ranks_run_on_the_cpus_of_their_tasks(start: Start) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU")
    tasks = start("print(os.getppid(), *os.sched_getaffinity(0))", binds=[{cpus[0]}, {cpus[1]}])
    one, two = told(tasks)
    assert one[0] == two[0] and [one[1], two[1]] == [str(cpu) for cpu in cpus[:2]]


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ("sys.exit(7)", 7),
        ("os._exit(255)", 255),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)", -15),
    ],
)
def test_task_ends_as_its_rank_has_ended(start: Start, does: str, code: int) -> None:
    assert ended(start(f"if rank == '1':\n {does}")) == [0, code]


def test_signals_of_a_task_reach_its_rank(start: Start) -> None:
    tasks = start(
        "print('waits', flush=True)\nwhile len(seen) < 2: select.select([], [], [], 0.02)\nprint(sorted(seen))"
    )
    assert [line(each) for each in tasks] == ["waits\n"] * 2
    for number in (signal.SIGTERM, signal.SIGUSR2):
        for each in tasks:
            each.send_signal(number)
    assert [line(each) for each in tasks] == ["[12, 15]\n"] * 2


@pytest.mark.parametrize("own", [None, {"OMP_NUM_THREADS": "3"}])
def test_signal_before_the_rank_exists_is_kept(start: Start, tmp_path: Path, own: dict[str, str] | None) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "gated.py").write_text(f"open({str(gate)!r}).read()")
    tasks = start("print(seen)", own, LOADED="gated")
    for each in tasks:
        wait_for("its request", lambda pid=each.pid: procfs.disposition(pid, signal.SIGTERM) == "handled", 30)  # type: ignore[misc]
        each.send_signal(signal.SIGTERM)
    gate.write_text("")
    assert told(tasks) == [["[15]"], ["[15]"]]


def test_killed_task_takes_its_rank_and_no_other(start: Start) -> None:
    tasks = start("print(os.getpid())")
    ranks = [int(line(each)) for each in tasks]
    tasks[0].kill()
    wait_for("the end of its rank", lambda: not procfs.is_alive(ranks[0]), 10, every_s=0.01)
    assert procfs.is_alive(ranks[1])
    assert ended(tasks) == [-signal.SIGKILL, 0]


def test_killed_server_takes_all_ranks(start: Start) -> None:
    tasks = start("print(os.getpid(), os.getppid(), flush=True); sys.stdin.read()")
    ranks, servers = zip(
        *[map(int, str(each.stdout and each.stdout.readline()).split()) for each in tasks], strict=True
    )
    os.kill(servers[0], signal.SIGKILL)
    assert [each.wait(10) for each in tasks] == [-signal.SIGKILL] * 2
    assert all("has been killed, and with it this rank" in str(each.stderr and each.stderr.read()) for each in tasks)
    wait_for("the end of the ranks", lambda: not any(map(procfs.is_alive, ranks)), 10, every_s=0.01)


def test_signal_to_the_group_of_a_task_spares_the_server(start: Start) -> None:
    tasks = start("print(os.getppid())")
    [server] = {int(line(each)) for each in tasks}
    starter = int(procfs.stat(server)[1])
    os.killpg(starter, signal.SIGKILL)
    assert sorted(ended(tasks)) == [-signal.SIGKILL, 0]


def test_server_outlives_the_signals_of_its_ranks(start: Start) -> None:
    tasks = start(
        "print(os.getppid(), flush=True)\nwhile not seen: select.select([], [], [], 0.02)\nprint(seen)", RESETS="1"
    )
    [server] = {int(line(each)) for each in tasks}
    assert procfs.name(server) == "fork-server"
    os.kill(server, signal.SIGTERM)
    os.kill(server, signal.SIGUSR2)
    for each in tasks:
        each.send_signal(signal.SIGTERM)
    assert told(tasks) == [["[15]"], ["[15]"]]


def test_server_ends_after_its_last_task(start: Start) -> None:
    tasks = start("print(os.getppid())")
    server = int(told(tasks)[0][0])
    wait_for("its end", lambda: not procfs.is_alive(server), 10, every_s=0.01)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"])
def test_task_with_other_variables_of_imports_becomes_the_rank(start: Start, name: str) -> None:
    tasks = start("print(os.getpid())", {name: "3"})
    are_ranks = [words == [str(each.pid)] for words, each in zip(told(tasks), tasks, strict=True)]
    assert sorted(are_ranks) == [False, True]


def address_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the address of the server of start()'s tasks."""
    monkeypatch.setenv(task.WANTED, name_of(tmp_path))
    return task._address()


@contextmanager
def as_nobody() -> Iterator[None]:
    """What is bound or connected meanwhile belongs to another user."""
    if os.geteuid():
        pytest.skip("only root acts as another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_server_of_another_user_is_asked_for_no_rank(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        with as_nobody():
            other.bind(address_of(tmp_path, monkeypatch))
            other.listen()
        tasks = start("print(os.getpid())")
        assert [line(each) for each in tasks] == [f"{each.pid}\n" for each in tasks]
        assert ended(tasks) == [0, 0]
        assert all("belongs to another user's process" in str(each.stderr and each.stderr.read()) for each in tasks)


def test_server_refuses_the_process_of_another_user(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = start("print()")
    assert [line(each) for each in tasks] == ["\n", "\n"]
    with socket.socket(socket.AF_UNIX) as other:
        with as_nobody():
            other.connect(address_of(tmp_path, monkeypatch))
        other.settimeout(10)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
        said = task.REFUSED
        with suppress(ConnectionError):  # the server has closed the connection before it has read all
            task._ask(other, [0, 1, 2], [], program_of(tmp_path))
            said = other.recv(9)
        assert said == task.REFUSED
    assert ended(tasks) == [0, 0]


@pytest.mark.parametrize("module", ["threaded", "sitecustomize"])
def test_server_with_a_thread_of_its_own_forks_no_rank(start: Start, tmp_path: Path, module: str) -> None:
    thread = "import _thread, threading; _thread.start_new_thread(threading.Event().wait, ())"
    (tmp_path / f"{module}.py").write_text(thread)
    tasks = start("print(os.getpid())", LOADED=module)
    assert told(tasks) == [[str(each.pid)] for each in tasks]


def test_task_with_bound_memory_becomes_the_rank(start: Start) -> None:
    tasks = start("print(os.getpid())", SLURM_MEM_BIND_TYPE="quiet,local")
    assert told(tasks) == [[str(each.pid)] for each in tasks]


def test_failed_import_in_the_server_is_left_to_the_ranks(start: Start) -> None:
    one, two = told(start("print(os.getppid())", LOADED="no_such_module"))
    assert one == two


def test_random_numbers_of_numpy_differ_between_ranks(start: Start) -> None:
    pytest.importorskip("numpy")
    one, two = told(start("import numpy, random; print(numpy.random.rand(), random.random())", LOADED="numpy.random"))
    assert one[0] != two[0] and one[1] != two[1]


def test_ranks_with_variables_set_by_their_code_start_anew(start: Start, tmp_path: Path) -> None:
    does = """
from pathlib import Path
with fork_server.noting_variables(Path('7.0')): os.environ['OMP_NUM_THREADS'] = '7'
print(bool(fork_server.forked_for), os.environ['OMP_NUM_THREADS'], seen)
"""
    assert told(start(does)) == [["False", "7", "[]"]] * 2
    assert (tmp_path / "7.0/cold").exists()


def test_tasks_in_reserve_become_ranks_of_the_next_attempt(start: Start) -> None:
    does = (
        "print(os.environ['ATTEMPT'], os.environ.get('OLD'), task.RESERVE in os.environ, reserve.meet_s, os.getppid())"
    )
    tasks = start(does, ATTEMPT="1", OLD="yes", CLUSTERDP_RESERVE="1")
    for each in tasks:
        wait_for("its name", lambda pid=each.pid: procfs.name(pid) == "reserve", 10)  # type: ignore[misc]
        assert each.stdin
        each.stdin.write('{"ATTEMPT": "2", "OLD": null}\n')
        each.stdin.flush()
    one, two = told(tasks)
    assert one == two and one[:4] == ["2", "None", "False", "300.0"]


def test_tasks_in_reserve_end_with_stdin_or_their_server(start: Start) -> None:
    tasks = start("", CLUSTERDP_RESERVE="1")
    for each in tasks:
        wait_for("its name", lambda pid=each.pid: procfs.name(pid) == "reserve", 10)  # type: ignore[misc]
    [server] = wait_for("the server", lambda: [pid for each in tasks for pid in procfs.children(each.pid)], 10)
    assert tasks[0].stdin
    tasks[0].stdin.close()
    assert tasks[0].wait(10) == 0 and procfs.is_alive(server)
    os.kill(server, signal.SIGKILL)
    assert tasks[1].wait(10) == 1, "srun reports it, and the batch program uses none of them"


@pytest.mark.parametrize(("name", "is_marked"), [("OMP_NUM_THREADS", True), ("WANDB_MODE", False)])
def test_variables_read_at_import_mark_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_marked: bool
) -> None:
    monkeypatch.setenv(name, "1")
    with fork_server.noting_variables(tmp_path / "7.0"):
        os.environ[name] = "7"
    with fork_server.noting_variables(None):
        os.environ[name] = "8"
    assert (tmp_path / "7.0/cold").exists() is is_marked
