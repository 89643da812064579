"""A Slurm in a folder: the same sbatch scripts run on it as on a real Slurm, on a laptop and in CI.

cluster           FakeCluster: starts a cluster, uses it, breaks it, takes it down
shape_file        a cluster's nodes, partitions and settings as a user declares them
install_commands  writes the cluster's sbatch, srun, ... into a folder for PATH
start_daemon      starts the daemon in the background, once
daemon_main       the program that does so
errors            FakeSlurmError
client/           the commands as users start them; each process sends its words to the daemon and prints the answer
commands/         what each command does, in the daemon
slurmctld/        the daemon: jobs, nodes, scheduling
slurmdbd/         accounting, in the same daemon
slurmstepd/       the process of one step, and the fork server that starts these processes
core/             the data and the rules that several of them share

How `sbatch job.sh` becomes a row of sacct:

1. client/: bin/sbatch sends its words, folder and environment to the daemon's socket and prints what comes back.
2. commands/: sbatch reads the script and the options, makes a JobDesc of them and submits it.
3. slurmctld/: the controller checks the JobDesc, makes a JobRecord and writes it to the journal. The scheduler gives
   the job nodes; then the fork server is asked for a slurmstepd, which is to run the batch script.
4. slurmstepd/: it runs the script and reports the end. Each srun in the script gets a slurmstepd in the same way.
   slurmctld sends it orders such as Terminate.
5. slurmctld/: when the last process is gone, the job is over and its nodes are free.
6. slurmdbd/: each change of the job is entered into accounting and can be seen a second later.
7. commands/: sacct prints the row.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.core.shape import NodeShape, PartitionShape, Shape, SlurmConf
    from clusterdp.fakeslurm.errors import FakeSlurmError

__all__ = ["FakeCluster", "FakeSlurmError", "NodeShape", "PartitionShape", "Shape", "SlurmConf"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: the daemon, which must start at once, needs no FakeCluster."""
    from importlib import import_module

    homes = {"FakeCluster": ".cluster", "FakeSlurmError": ".errors"}
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes.get(name, ".core.shape"), __name__), name)
