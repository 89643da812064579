"""What a user sees, kept in files: a command is run on a terminal of a fixed width, and its screen is compared.

`CLUSTERDP_REFRESH=1 python -m pytest tests/operate` writes the files anew; look at each as a user would.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"\x1b\[[\d;]*m")
# `python -m clusterdp` at a moment of ours. Nothing but the clock is not what a user runs.
AT = "import runpy, time; time.time = lambda: {now!r}; runpy.run_module('clusterdp', None, '__main__', alter_sys=True)"


def check_golden(path: Path, text: str) -> None:
    if os.environ.get("CLUSTERDP_REFRESH"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "if the change is meant, refresh the golden files and read their diff"


def on_terminal(words: Sequence[str], columns: int, now: float, **variables: str) -> str:
    """What `clusterdp WORDS` writes on a terminal, stdout and stderr in one. Its colours are still codes."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command, environ = [sys.executable, "-c", AT.format(now=now), *words], _environ() | {"TERM": "xterm"} | variables
    child = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environ)
    os.close(follower)
    written = b""
    try:
        while data := os.read(leader, 1 << 16):
            written += data
    except OSError:  # EIO: the last who had the terminal open has closed it
        pass
    os.close(leader)
    assert child.wait() == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


def in_pipe(words: Sequence[str], now: float) -> str:
    command = [sys.executable, "-c", AT.format(now=now), *words]
    return subprocess.run(command, env=_environ(), capture_output=True, text=True, check=True).stdout


def _environ() -> Mapping[str, str]:
    """Without what would decide on colours and width, and with one time zone."""
    decides = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if name not in decides}
    return kept | {"TZ": "UTC", "PYTHONPATH": str(ROOT)}


def plain(text: str) -> str:
    return CODE.sub("", text)


def readable(text: str) -> str:
    """Codes as text: an editor shows a golden file as it is."""
    return text.replace("\x1b", "\\e")
