"""What each Slurm command does, on the daemon's side: a coroutine from a conversation to an exit status."""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

Command = Callable[["Connection", "Daemon"], Awaitable[int]]
# `control` is not Slurm's: what FakeCluster asks for.
NAMES = "sbatch srun salloc squeue scancel scontrol sacct sacctmgr sstat sinfo sshare sdiag sreport control".split()


def find(name: str) -> Command | None:
    """Loaded when first asked for: a cluster that starts needs none of them yet."""
    if name not in NAMES:
        return None
    run: Command = import_module(f".{name}", __name__).run
    return run
