"""`clusterdp init --on HOST`: finds clusterdp and Slurm on a cluster behind ssh, and proposes the settings for it."""

from __future__ import annotations

import subprocess

from clusterdp import __version__
from clusterdp.errors import RemoteError, Unreachable
from clusterdp.remote.connection import command, install, open_master
from clusterdp.remote.host import remote_host
from clusterdp.site_profile import host_profile, user_profile
from clusterdp.submission.init import NewFile

# $1: the interpreter of the settings. Prints each interpreter there with its version of clusterdp, or `-`; then sbatch
PROBE = r"""
PATH=$PATH:$(sh -lc 'echo "$PATH"' 2>/dev/null | tail -n 1)
cd; for python in "$@" ~/envs/*/bin/python ~/.venv/bin/python ~/venv/bin/python ~/*/.venv/bin/python \
    ~/*conda*/envs/*/bin/python ~/*forge*/envs/*/bin/python ~/*conda*/bin/python; do
  path=$(command -v "$python") || continue
  "$path" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
  version=$("$path" -c 'import clusterdp; print(clusterdp.__version__)' 2>/dev/null)
  echo "clusterdp:python:${version:--}:$path"
done
echo "clusterdp:sbatch:$(command -v sbatch)"
"""


def propose(name: str) -> tuple[list[NewFile], list[str]]:
    """Returns the file with the settings of the host, and lines about what was found and is missing there."""
    host = remote_host(name)
    # A login shell of any kind passes the program on: it comes on stdin.
    words = command(host, open_master(host), "exec sh")
    done = subprocess.run(words, input=f"set -- {host.python}\n{PROBE}", capture_output=True, text=True, check=False)
    found = [line.split(":", 3)[1:] for line in done.stdout.splitlines() if line.startswith("clusterdp:")]
    sbatch = next((rest[0] for kind, *rest in found if kind == "sbatch"), None)
    if sbatch is None:
        kind = Unreachable if done.returncode == 255 else RemoteError
        raise kind(f"{name}: did not run a shell's lines. It says: {(done.stderr or done.stdout).strip()[-200:]!r}.")
    pythons = [(rest[0], rest[1]) for kind, *rest in found if kind == "python"]
    version, python = max(pythons, key=lambda each: (each[0] == __version__, each[0] != "-"), default=("-", ""))
    said = [
        f"Slurm: {sbatch}" if sbatch else f"Slurm: no sbatch on PATH of {name}. Ask its administrators where it is."
    ]
    if not python:
        said.append(f"Python: none of version 3.10 or newer. Make an environment on {name}, and call this again.")
        return [], said
    said.append(f"Python: {python}")
    if version == __version__:
        said.append(f"clusterdp: {version}, as here")
    else:
        what = "is not there" if version == "-" else f"{version}, and here is {__version__}"
        said.append(f"clusterdp: {what}. Type: {install(host._replace(python=python))}")
    said.append(f"Your projects will be in {host.folder} there: remote.folder says where.")
    text = "# clusterdp on this host; written by `clusterdp init --on`, for you to change\n"
    text += f"remote:\n  folder: ~/clusterdp/PROJECT\n  python: {python}\n"
    said.append(f"To make it the default: `on: {name}` in {user_profile()}")
    return [NewFile(host_profile(name), text)], said
