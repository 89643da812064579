"""The param that says how long a run trains: `epochs`, or another of such names. Only its config knows."""

from __future__ import annotations

import re

from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir

# submit writes a param a line. To parse all of YAML would take longer than all else that `status` does.
LENGTH = re.compile(r"^params:\n(?:  .*\n)*?  ((?:max_|num_|n_|total_)?(?:epochs|steps)): \d", re.MULTILINE)


def length_param(run: RunDir) -> str:
    """`params.epochs`, if the config has it; empty if it has none of these, or cannot be read."""
    try:
        found = LENGTH.search(read_plain(run.config).decode())
    except (OSError, ValueError):
        return ""
    return f"params.{found[1]}" if found else ""
