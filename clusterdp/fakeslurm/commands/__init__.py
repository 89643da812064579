"""The commands in the daemon: a coroutine each, from a connection to an exit status.

sbatch               submits a batch script
srun                 starts a step, in a job of its own if need be
srun_plan            from the options of srun to the plan of its step
salloc               gets nodes for as long as a command runs
allocation           what srun outside of a job and salloc share: a job without a script, and the wait for its nodes
scancel              ends or signals jobs and steps
squeue               lists jobs and steps
squeue_fields        the fields of squeue
sinfo                lists nodes and partitions
sinfo_fields         the fields of sinfo, and the words for the state of a node
sacct                lists jobs and steps of the past
sacct_fields         the fields of sacct
sacct_json           --json of sacct
scontrol             changes jobs and nodes; ping, listpids and the rest
scontrol_show        `scontrol show`
scontrol_update      `scontrol update`
sacctmgr             lists accounts, users and clusters
sstat                what running steps use
sshare               the one user's share
sbcast               copies a file to the nodes of a job
control              not a command of Slurm: FakeCluster's way to break things, to wait, and to move the clock
read_words           the words of a command as options and others; --help, --version, --clusters, --iterate
getopt               reads command lines as getopt_long does, with its error texts
options              which options sbatch, srun and salloc know, and the variables that set them
option_values        which values those options take
parsed_options       the options that were given, and what each value means
job_desc_of_options  from the options to a JobDesc
columns              tables as squeue and sinfo print them
as_json              --json and --yaml of squeue, sinfo and scontrol, as in 22.05
as_newer_json        the same from 23.11 on
json_defaults        what that says of what the fake does not have
"""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

Command = Callable[["Connection", "Daemon"], Awaitable[int]]
# `control` is not a command of Slurm: FakeCluster uses it.
NAMES = "sbatch srun salloc squeue scancel scontrol sacct sacctmgr sstat sbcast sinfo sshare control".split()


def find(name: str) -> Command | None:
    """The command of that name, loaded when first asked for: a cluster that starts needs none of them."""
    if name not in NAMES:
        return None
    run: Command = import_module(f".{name}", __name__).run
    return run
