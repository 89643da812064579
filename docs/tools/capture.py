"""Runs a command on a terminal of 100 columns, and draws its last screen as SVG (needs tmux):

python docs/tools/capture.py docs/rehearsal.svg clusterdp rehearse configs/digits.yaml run_dir=runs/digits
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 100, 60
# As rich's own, without the fonts that it loads from a server.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def screen(command: list[str]) -> str:
    """Returns the last screen of the command, with colours. Needs tmux."""
    tmux = ["tmux", "-L", f"capture-{os.getpid()}", "-f", "/dev/null"]
    ended = shlex.join([*tmux, "wait-for", "-S", "ended"])
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    subprocess.run([*tmux, "new-session", "-d", *size, f"{shlex.join(command)}; {ended}; read _"], check=True)
    try:
        subprocess.run([*tmux, "wait-for", "ended"], check=True)
        return subprocess.run([*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def main(target: str, *command: str) -> None:
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(f"$ {' '.join(command)}\n{screen([*command])}".rstrip()))
    Path(target).write_text(console.export_svg(title="", code_format=FORMAT, unique_id="terminal"))


if __name__ == "__main__":
    main(*sys.argv[1:])
