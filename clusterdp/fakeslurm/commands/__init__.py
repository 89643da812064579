"""The commands in the daemon. Each command is a coroutine that gets a connection and returns an exit status.

sbatch               submits a batch script
srun                 starts a step, in its own job if it is called outside of jobs
srun_plan            makes the plan of a step from the options of srun
salloc               gets nodes for as long as a command runs
allocation           a job without a script, and the wait for its nodes: for salloc, and for srun outside of jobs
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
sstat                the resource usage of running steps
sshare               the one user's share
sbcast               copies a file to the nodes of a job
control              not a command of Slurm: FakeCluster uses it to cause faults, to wait, and to move the clock
read_words           splits a command line into options and other words; --help, --version, --clusters, --iterate
getopt               parses command lines like getopt_long, with its error texts
options              the options of sbatch, srun and salloc, and the variables that set them
option_values        the valid values of these options
parsed_options       the options of one command line, and the meaning of each value
job_desc_of_options  makes a JobDesc from the options
columns              tables as squeue and sinfo print them
as_json              --json and --yaml of squeue, sinfo and scontrol, as in 22.05
as_newer_json        the same from 23.11 on
json_defaults        JSON values for things that the fake does not have
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
    """Returns the command of this name, or None. Loads the command's module on first use, because the daemon starts
    faster without the commands."""
    if name not in NAMES:
        return None
    run: Command = import_module(f".{name}", __name__).run
    return run
