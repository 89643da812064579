"""The commands in the daemon. Each command is a coroutine that gets a connection and returns an exit status."""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..slurmctld.connection import Connection
    from ..slurmctld.daemon import Daemon

Command = Callable[["Connection", "Daemon"], Awaitable[int]]
# `control` is not a command of Slurm: FakeCluster uses it.
NAMES = "sbatch srun salloc squeue scancel scontrol sacct sacctmgr sstat sbcast sinfo sshare control".split()


def find(name: str) -> Command | None:
    """Returns the command of this name, or None. Loads the command's module on first use, because the daemon starts
    faster without the commands."""
    if name not in NAMES:
        return None
    run: Command = import_module(f".{name}", __name__).run
    return run
