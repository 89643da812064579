"""The commands in the daemon. Each command is a coroutine that gets a connection and returns an exit status.

options/    the options of command lines and #SBATCH lines: names, values, the JobDesc that they make
run/        the commands that start jobs and steps
show/       those that print jobs, nodes and accounting, as tables and as JSON
change/     those that change and end them
"""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..slurmctld.connection import Connection
    from ..slurmctld.daemon import Daemon

Command = Callable[["Connection", "Daemon"], Awaitable[int]]
# `control` is not a command of Slurm: FakeCluster uses it.
ROOMS = {
    "run": "sbatch srun salloc sbcast",
    "show": "squeue sinfo sacct sstat sshare",
    "change": "scontrol scancel sacctmgr control",
}
HOMES = {name: room for room, names in ROOMS.items() for name in names.split()}
NAMES = list(HOMES)


def find(name: str) -> Command | None:
    """Returns the command of this name, or None. Loads the command's module on first use, because the daemon starts
    faster without the commands."""
    if name not in HOMES:
        return None
    run: Command = import_module(f".{HOMES[name]}.{name}", __name__).run
    return run
