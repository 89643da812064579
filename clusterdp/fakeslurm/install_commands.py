"""Writes the commands of a cluster as files for PATH."""

from __future__ import annotations

from pathlib import Path

from .commands import NAMES
from .core.paths import Paths

CLIENT = Path(__file__).resolve().parent / "client"
# Slurm's other commands, which print an error. Without these files, the commands of an installed Slurm would run.
REFUSED = "sattach scrontab sdiag sgather sreport strigger sview".split()
REFUSAL = """\
#!/bin/sh
echo '{name}: error: not supported by this fake cluster' >&2
exit 1
"""
SPRIO = """\
#!/bin/sh
echo 'You are not running a supported priority plugin
(priority/basic).
Only '"'priority/multifactor'"' is supported.' >&2
exit 1
"""


def install(paths: Paths) -> None:
    """Writes the commands into bin/. Commands run Python without site, because they must start within milliseconds."""
    python = paths.interpreter()
    own = {file.stem for file in CLIENT.glob("*.py")}
    for name in set(NAMES) - {"control"}:
        # Not a shell script, because /bin/sh may drop variables with names that it rejects, like bash's functions.
        where = [str(paths.folder), str(paths.socket)]
        path = paths.bin / name
        runs = f"import {name}" if name in own else f"from client import run\nrun({name!r})"
        path.write_text(
            f"#!{python} -SEs\nimport sys\nsys.argv[1:1] = {where!r}\nsys.path[0] = {str(CLIENT)!r}\n{runs}\n",
            errors="surrogateescape",
        )
        path.chmod(0o700)
    others = {name: REFUSAL.format(name=name) for name in REFUSED} | {"sprio": SPRIO}
    for name, text in others.items():
        path = paths.bin / name
        path.write_text(text)
        path.chmod(0o700)
