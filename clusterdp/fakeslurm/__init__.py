"""A Slurm in a folder, for laptops and CI, which runs the same sbatch scripts as a real Slurm.

FakeCluster starts a cluster, uses it, causes faults and takes it down; FakeSlurmError is its error.

client/           the commands that users start; each sends its command line to the daemon and prints the answer
commands/         the work of each command, in the daemon
slurmctld/        the daemon: jobs, nodes, scheduling
slurmdbd/         accounting, in the same daemon
slurmstepd/       the process of one step, and the fork server that starts these processes
core/             data and rules that several folders share

How `sbatch job.sh` becomes a row of sacct:

1. client/: bin/sbatch sends its command line, folder and environment to the daemon's socket and prints the answer.
2. commands/: sbatch reads the script and the options, makes a JobDesc and submits it.
3. slurmctld/: the controller checks the JobDesc, makes a JobRecord and writes it to the journal. The scheduler gives
   the job nodes. Then the controller asks the fork server for a slurmstepd that runs the batch script.
4. slurmstepd/: slurmstepd runs the script and reports the end. Each srun in the script gets its own slurmstepd.
   slurmctld sends orders such as Terminate to slurmstepd.
5. slurmctld/: after the end of its last process, the job is over and its nodes are free.
6. slurmdbd/: each change of the job is entered into accounting and is visible a second later.
7. commands/: sacct prints the row.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import FakeCluster
    from .core.shape import NodeShape, PartitionShape, Shape, SlurmConf
    from .errors import FakeSlurmError

__all__ = ["FakeCluster", "FakeSlurmError", "NodeShape", "PartitionShape", "Shape", "SlurmConf"]


def __getattr__(name: str) -> Any:
    """Loads a name on first use, because the daemon must start fast and does not need FakeCluster."""
    from importlib import import_module

    homes = {"FakeCluster": ".cluster", "FakeSlurmError": ".errors"}
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes.get(name, ".core.shape"), __name__), name)
