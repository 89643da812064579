"""The calls of a trapped process, seen and held."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm.core import file_traps
from clusterdp.rehearse.observe.file_events import FileEvent, FileEvents, _text
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(not file_traps.possible(), reason="this kernel has no file traps")

TRAPPED = "from clusterdp.fakeslurm.core import file_traps; file_traps.install({socket!r}, 3, 'n1'); import os\n"


@pytest.fixture
def events(tmp_path: Path) -> Iterator[FileEvents]:
    heard = FileEvents(tmp_path / "s")
    yield heard
    heard.close()


def started(events: FileEvents, folder: Path, code: str) -> subprocess.Popen[bytes]:
    (folder / "work").mkdir()
    trapped = TRAPPED.format(socket=str(events.socket)) + code
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    return subprocess.Popen([sys.executable, "-B", "-c", trapped], cwd=folder / "work", env=environ)


def test_file_events_record_calls_with_absolute_paths_except_appends_and_reads(
    events: FileEvents, tmp_path: Path
) -> None:
    code = """
with open("a.tmp", "wb") as file: file.write(bytes(1000))
os.replace("a.tmp", "a.pt")
os.link("a.pt", "b.pt")
os.symlink("a.pt", "latest")
here = os.open(".", os.O_RDONLY)
os.unlink("b.pt", dir_fd=here)
open("log", "a").close()
open("a.pt", "rb").close()
"""
    assert started(events, tmp_path, code).wait() == 0
    work = str(tmp_path / "work")
    seen = [(each.kind, each.path.removeprefix(f"{work}/"), each.to, each.rank) for each in events.events]
    assert seen == [
        ("write", "a.tmp", "", 3),
        ("rename", "a.tmp", f"{work}/a.pt", 3),
        ("link", "a.pt", f"{work}/b.pt", 3),
        ("symlink", "a.pt", f"{work}/latest", 3),
        ("delete", "b.pt", "", 3),
    ]
    assert events.binary == {f"{work}/a.tmp": 1000}


def test_file_events_show_a_nameless_file_and_its_first_link(events: FileEvents, tmp_path: Path) -> None:
    code = """
for step in range(2):
    file = os.open(".", os.O_TMPFILE | os.O_WRONLY)
    os.write(file, bytes(1000))
    os.link(f"/proc/self/fd/{file}", f"step_{step}.pt", src_dir_fd=0, follow_symlinks=True)
    os.close(file)
"""
    assert started(events, tmp_path, code).wait() == 0
    work = tmp_path / "work"
    seen = [(each.kind, each.path, each.to) for each in events.events]
    assert seen[:2] == [("write", f"{work}/#", ""), ("link", f"{work}/#", f"{work}/step_0.pt")]
    assert seen[3] == ("link", f"{work}/#", f"{work}/step_1.pt")
    assert events.binary == {f"{work}/#": 1000}


def test_file_is_a_log_if_appended_to_more_often_than_written(events: FileEvents, tmp_path: Path) -> None:
    code = """
for name, modes in (("log", "waa"), ("a.pt", "wawa"), ("b.pt", "w"), ("c.log", "a")):
    for mode in modes:
        open(name, mode).close()
"""
    assert started(events, tmp_path, code).wait() == 0
    assert {Path(path).name for path in events.logs} == {"log", "c.log"}


def test_held_call_does_not_run_before_its_release(events: FileEvents, tmp_path: Path) -> None:
    events.hold(lambda event: event.kind == "rename")
    process = started(events, tmp_path, "open('a', 'w').close(); os.rename('a', 'b'); os.rename('b', 'c')")
    wait_for("a held call", lambda: events.held is not None, 10, every_s=0.01)
    assert os.listdir(tmp_path / "work") == ["a"]
    events.go_on_to(lambda event: event.kind == "rename")
    wait_for("a held call", lambda: events.held is not None, 10, every_s=0.01)
    assert os.listdir(tmp_path / "work") == ["b"]
    events.finish()
    assert os.listdir(tmp_path / "work") == ["c"]
    events.release()
    assert process.wait() == 0


def test_held_call_never_runs_if_its_process_is_killed(events: FileEvents, tmp_path: Path) -> None:
    events.hold(lambda event: event.kind == "delete")
    process = started(events, tmp_path, "open('a', 'w').close(); os.unlink('a')")
    wait_for("a held call", lambda: events.held is not None, 10, every_s=0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    events.release()
    assert os.listdir(tmp_path / "work") == ["a"]


def test_call_of_a_dead_process_is_not_held(events: FileEvents, tmp_path: Path) -> None:
    """Its notice was still being read at the next hold(): that drill killed ranks before they had begun."""
    in_hand, go_on = threading.Event(), threading.Event()

    def heard(event: FileEvent) -> None:
        in_hand.set()
        assert go_on.wait(10)

    events.heard = heard
    process = started(events, tmp_path, "open('a', 'w').close()")
    assert in_hand.wait(10)
    process.kill()
    process.wait()
    hold = threading.Thread(target=events.hold, args=[lambda event: True])
    hold.start()
    hold.join(0.1)  # returns at once if hold() does not wait for the notice
    go_on.set()
    hold.join()
    wait_for("the end of the notice", lambda: events.events or events.held, 10, every_s=0.01)
    assert events.held is None


def test_handled_signal_does_not_interrupt_a_held_call(events: FileEvents, tmp_path: Path) -> None:
    """An open() of libc failed with EINTR, which torch.save() in a program that heeds SIGTERM does not try again."""
    code = """
import ctypes, signal
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
libc = ctypes.CDLL(None, use_errno=True)
file = libc.open(b"a", os.O_WRONLY | os.O_CREAT, 0o644)
assert file >= 0, os.strerror(ctypes.get_errno())
assert heard
"""
    events.hold(lambda event: event.kind == "write")
    process = started(events, tmp_path, code)
    wait_for("a held call", lambda: events.held is not None, 10, every_s=0.01)
    process.send_signal(signal.SIGTERM)
    events.release()
    assert process.wait() == 0


def test_signal_of_the_fake_interrupts_no_call_with_a_late_notice(
    events: FileEvents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, os.replace() raised InterruptedError, which no disk gives."""
    code = """
import signal
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
open("a", "w").close()
os.rename("a", "b")
while len(heard) < 3:
    os.rename("b", "a")
    os.rename("a", "b")
"""
    receive = events._receive
    monkeypatch.setattr(events, "_receive", lambda listener: (time.sleep(0.01), receive(listener)))
    process = started(events, tmp_path, code)
    for _ in range(3):
        known = len(events.events)
        wait_for("calls", lambda known=known: len(events.events) > known + 2, 10, every_s=0.01)
        file_traps.send(str(events.socket), [process.pid], signal.SIGTERM)
    assert process.wait() == 0


def test_refused_held_call_fails_and_is_not_executed(events: FileEvents, tmp_path: Path) -> None:
    events.hold(lambda event: event.kind == "rename")
    process = started(events, tmp_path, "open('a', 'w').close(); os.rename('a', 'b')")
    wait_for("a held call", lambda: events.held is not None, 10, every_s=0.01)
    with events.refused():
        pass
    assert process.wait() == 1
    assert os.listdir(tmp_path / "work") == ["a"]


def test_new_calls_fail_without_effect_while_calls_are_refused(events: FileEvents, tmp_path: Path) -> None:
    with events.refused():
        assert started(events, tmp_path, "os.symlink('a', 'b')").wait() == 1
    assert os.listdir(tmp_path / "work") == []


def test_file_events_of_a_child_process_have_its_environments_rank(events: FileEvents, tmp_path: Path) -> None:
    code = "os.environ['RANK'] = '5'; import subprocess; subprocess.run(['touch', 'x'], check=True)"
    assert started(events, tmp_path, code).wait() == 0
    assert [(each.path, each.rank) for each in events.events] == [(str(tmp_path / "work" / "x"), 5)]


def test_writes_to_dev_null_and_dev_shm_are_not_recorded(events: FileEvents, tmp_path: Path) -> None:
    code = "open('/dev/null', 'w'); open('/dev/shm/torch_7_x', 'w'); os.unlink('/dev/shm/torch_7_x')"
    assert started(events, tmp_path, code).wait() == 0
    assert events.events == []


def test_simulated_full_disk_refuses_every_kind_of_write_without_storing_a_byte(tmp_path: Path) -> None:
    code = """
import errno, json, shutil
open("source", "wb").write(bytes(8))
source, room, full = (os.open(name, os.O_RDWR | os.O_CREAT) for name in ("source", "room", "full"))
ways = {
    "write": lambda file: os.write(file, b"x"),
    "pwrite": lambda file: os.pwrite(file, b"x", 0),
    "writev": lambda file: os.writev(file, [b"x", b"y"]),
    "pwritev": lambda file: os.pwritev(file, [b"x"], 0),
    "sendfile": lambda file: os.sendfile(file, source, 0, 8),
    "copy_file_range": lambda file: os.copy_file_range(source, file, 8),
    "fallocate": lambda file: os.posix_fallocate(file, 0, 64),
}
for name, way in ways.items():
    way(room)
    try:
        way(full)
    except OSError as error:
        open("failed", "a").write(f"{name} {error.errno}\\n")
try:
    with open("full", "w") as file: file.write("x")
except OSError as error:
    open("failed", "a").write(f"close {error.errno}\\n")
"""
    events = FileEvents(tmp_path / "s", sees_bytes=True)
    work = tmp_path / "work"
    with events.disk_full(lambda file: file.resolve() == work / "full"):
        assert started(events, tmp_path, code).wait() == 0
    events.close()
    ways = ("write", "pwrite", "writev", "pwritev", "sendfile", "copy_file_range", "fallocate", "close")
    assert (work / "failed").read_text() == "".join(f"{way} {errno.ENOSPC}\n" for way in ways)
    assert events.unwritten >= len(ways)
    assert (work / "full").stat().st_size == 0 < (work / "room").stat().st_size


def test_writes_succeed_again_after_disk_full_ends(tmp_path: Path) -> None:
    events = FileEvents(tmp_path / "s", sees_bytes=True)
    events.hold(lambda event: event.kind == "delete")
    process = started(
        events, tmp_path, "file = open('a', 'wb', 0); open('b', 'w').close(); os.unlink('b'); file.write(b'x')"
    )
    wait_for("a held call", lambda: events.held is not None, 10, every_s=0.01)
    with events.disk_full(lambda file: True):
        pass
    events.release()
    assert process.wait() == 0
    events.close()
    assert (tmp_path / "work" / "a").read_bytes() == b"x"


def test_reading_a_path_of_a_dying_process_raises_process_lookup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda *_: b"")  # as the kernel answers once its memory is gone
    with pytest.raises(ProcessLookupError):
        _text(os.getpid(), 4096)
