"""The environment that environment.bash has unpacked on a disk of each node (launch.environment)."""

import os

from ..files.rules import Rules
from ..files.texts import warn
from ..processes.slurm import Slurm

REMOVAL_S = 20  # seconds after which a job leaves its nodes without the removal


def remove(rules: Rules, slurm: Slurm, nodes: int) -> None:
    """Removes the environment from the nodes that the job leaves. What a killed job leaves behind stays in /tmp."""
    place = os.environ.get("CLUSTERDP_ENVIRONMENT", "")
    if rules.environment and place:
        words = ["srun", "--nodes={}".format(nodes), "--ntasks={}".format(nodes), "--ntasks-per-node=1"]
        words += ["--cpus-per-task=1", "--overlap", "--mem=0", "--gres=none", "--mpi=none", "--quiet"]
        answer = slurm.ask([*words, "rm", "-rf", "--", place], limit_s=REMOVAL_S)
        if answer.code:
            warn("{} may be left on the nodes: {}".format(place, answer.said or "srun has not answered"))
