"""The commands of a cluster, as files for PATH."""

from __future__ import annotations

from pathlib import Path

from clusterdp.fakeslurm.core.paths import Paths

CLIENT = Path(__file__).resolve().parent / "client"
NOT_COMMANDS = ("client", "__init__")
# Slurm's other commands: where a real Slurm is installed, they would ask that one.
REFUSED = "sattach sbcast scrontab sgather strigger sview".split()
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
    """Into bin/. Their interpreter gets no site, so that it starts within milliseconds."""
    python = paths.interpreter()
    for command in sorted(CLIENT.glob("*.py")):
        if command.stem in NOT_COMMANDS:
            continue
        # Not a shell script: /bin/sh may drop variables that it cannot name, such as bash's exported functions.
        where = [str(paths.folder), str(paths.socket)]
        path = paths.bin / command.stem
        path.write_text(
            f"#!{python} -SEs\nimport sys\nsys.argv[1:1] = {where!r}\n"
            f"sys.path[0] = {str(CLIENT)!r}\nimport {command.stem}\n",
            errors="surrogateescape",
        )
        path.chmod(0o700)
    others = {name: REFUSAL.format(name=name) for name in REFUSED} | {"sprio": SPRIO}
    for name, text in others.items():
        path = paths.bin / name
        path.write_text(text)
        path.chmod(0o700)
