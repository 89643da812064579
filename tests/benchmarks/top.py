"""How fast `clusterdp top` is with 200 and with 10,000 runs: the first screen, a key, and the processor time of a
minute in which nothing happens. Beside it, `clusterdp list` of the same runs."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.list_runs import make_runs
from tests.benchmarks.startup import clusterdp, timed
from tests.benchmarks.table import keep, machine

COLUMNS, LINES = 120, 40
QUIET_S = 0.25  # a screen without news for this time is drawn
TICKS = os.sysconf("SC_CLK_TCK")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: Sequence[str]):
        self.file, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environ = os.environ | {"TERM": "xterm-256color"}
        self.program = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environ)
        os.close(follower)

    def until(self, word: bytes, limit_s: float = 120) -> None:
        text, deadline = b"", time.monotonic() + limit_s
        while word not in text:
            ready, _, _ = select.select([self.file], [], [], deadline - time.monotonic())
            assert ready, f"no {word!r} on the screen within {limit_s:g} s"
            text += os.read(self.file, 1 << 16)

    def quiet(self) -> None:
        while select.select([self.file], [], [], QUIET_S)[0]:
            os.read(self.file, 1 << 16)

    def press(self, key: bytes) -> float:
        """Seconds from the key to the first bytes of the screen that it makes."""
        self.quiet()
        began = time.perf_counter()
        os.write(self.file, key)
        select.select([self.file], [], [], 10)
        return time.perf_counter() - began

    def cpu_s(self) -> float:
        """Of the program, and of the squeues that it has called, so far."""
        fields = Path(f"/proc/{self.program.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS

    def quit(self) -> None:
        os.write(self.file, b"q")
        while True:
            try:
                if not os.read(self.file, 1 << 16):
                    break
            except OSError:  # the program has closed its terminal
                break
        os.close(self.file)
        assert self.program.wait() == 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--idle-s", type=float, default=60.0)
    given = options.parse_args()
    print(f"`clusterdp top` on a terminal of {COLUMNS} x {LINES}\n{machine()}\n")
    for over, live in ((180, 20), (9_900, 100)):
        with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
            measure(Path(name), over, live, given.rounds, given.idle_s)


def measure(folder: Path, over: int, live: int, rounds: int, idle_s: float) -> None:
    make_runs(folder, over, live)
    os.chdir(folder)
    os.environ.update(PATH=f"{folder / 'bin'}:{os.environ['PATH']}", XDG_STATE_HOME=str(folder / "state"))
    os.environ.pop("SLURM_CONF", None)
    listed = timed(clusterdp("list", "-n", "0"))
    listed()  # keeps the summaries of runs that are over
    runs, command, first, first_cpu, others = over + live, clusterdp("top"), [], [], []
    for _ in range(rounds):
        began = time.perf_counter()
        top = Terminal(command)
        top.until(f"{runs} runs".encode())
        first.append(time.perf_counter() - began)
        first_cpu.append(top.cpu_s())
        top.quit()
        others.append(listed())
    top = Terminal(command)
    top.until(f"{runs} runs".encode())
    keys = {"j": b"j", "page down": b"\x06", "to the end": b"G", "to the start": b"g"}
    taken = {word: [top.press(key) for _ in range(20)] for word, key in keys.items()}
    taken["filter"] = [top.press(key) for key in (b"/", b"d", b"i", b"g")]
    top.press(b"\x1b")
    top.quiet()
    before, began = top.cpu_s(), time.monotonic()
    while (left := began + idle_s - time.monotonic()) > 0:
        if select.select([top.file], [], [], left)[0]:
            os.read(top.file, 1 << 16)
    idle = (top.cpu_s() - before) / idle_s
    top.quit()
    rows = {
        "first screen, ms": 1000 * statistics.median(first),
        "its processor time, ms": 1000 * statistics.median(first_cpu),
        "`clusterdp list -n 0`, ms": 1000 * statistics.median(others),
        **{f"key to screen, {word}, ms": 1000 * statistics.median(values) for word, values in taken.items()},
        "the slowest key, ms": 1000 * max(map(max, taken.values())),
        "idle, % of a core": 100 * idle,
    }
    print(f"{runs:,} runs, {live} of them running; squeue is a shell script")
    for name, value in rows.items():
        print(f"  {name:40} {value:8.1f}")
        keep(f"top with {runs} runs: {name}", value)
    print()


if __name__ == "__main__":
    main()
