"""What each Slurm command does, on the daemon's side: a coroutine from a conversation to an exit status."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from . import control, sacct, sacctmgr, salloc, sbatch, scancel, scontrol, sinfo, squeue, srun, sstat

if TYPE_CHECKING:
    from clusterdp.fakeslurm.conversation import Conversation
    from clusterdp.fakeslurm.daemon import Daemon

COMMANDS: "dict[str, Callable[[Conversation, Daemon], Awaitable[int]]]" = {
    "sbatch": sbatch.run,
    "srun": srun.run,
    "salloc": salloc.run,
    "squeue": squeue.run,
    "scancel": scancel.run,
    "scontrol": scontrol.run,
    "sacct": sacct.run,
    "sacctmgr": sacctmgr.run,
    "sstat": sstat.run,
    "sinfo": sinfo.run,
    "control": control.run,  # not Slurm's: what FakeCluster asks for
}
