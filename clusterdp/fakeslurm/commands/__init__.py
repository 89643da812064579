"""What each Slurm command does, on the daemon's side: a coroutine that gets the conversation and gives an exit status."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from . import control, sacct, sbatch, scancel, scontrol, sinfo, squeue, srun

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..daemon import Daemon

COMMANDS: "dict[str, Callable[[Conversation, Daemon], Awaitable[int]]]" = {
    "sbatch": sbatch.run,
    "srun": srun.run,
    "squeue": squeue.run,
    "scancel": scancel.run,
    "scontrol": scontrol.run,
    "sacct": sacct.run,
    "sinfo": sinfo.run,
    "control": control.run,  # not Slurm's: what FakeCluster asks for
}
