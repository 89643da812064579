"""Placement: the nodes of the ranks in a job with spare nodes, and the srun command that starts the ranks there.

The ranks run on the first of the job's nodes. A spare node takes the place of a node that is lost, so that the ranks of
all other nodes keep their numbers. srun sorts the nodes of --nodelist. Therefore it reads another order from a file
(--distribution=arbitrary). Then SLURM_PROCID follows the file, but SLURM_NODEID the sorted nodes, and ranks cannot fill
sockets (Slurm 22.05 to 26.05).
"""

import os
import re
from typing import Dict, List, Mapping, Sequence, Set, Tuple

from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..processes.slurm import Slurm

# srun refuses these options beside the file, and the variables from which it takes them.
OPTIONS = ("--nodes=", "--ntasks-per-node=", "--distribution=")
NUMBERS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
VARIABLES = (b"SLURM_NNODES", b"SLURM_JOB_NUM_NODES", b"SLURM_NTASKS_PER_NODE")


class Placement:
    """lost: nodes on which no rank starts again in this allocation. gone: those of them that the job no longer has, or
    will lose as soon as Slurm finds them dead."""

    def __init__(self, job: Job, rules: Rules, slurm: Slurm) -> None:
        self.lost: Set[str] = set()
        self.gone: Set[str] = set()
        self._job = job
        self._rules = rules
        self._slurm = slurm
        self.all: List[str] = []
        self._nodes: List[str] = []

    @property
    def nodes(self) -> List[str]:
        """The nodes of the ranks, in the order of the ranks; empty in a job without spare nodes."""
        if self._rules.spare_nodes and not self._nodes:
            self.all = self._slurm.expand(self._job.nodes)
            if len(self.all) < self._rules.nodes:
                raise OSError("scontrol show hostnames {} gives no list of the nodes".format(self._job.nodes))
            self._nodes = self.all[: self._rules.nodes]
        return self._nodes

    @property
    def text(self) -> str:
        """The nodes of the ranks as a list of Slurm."""
        return ",".join(self.nodes) or self._job.nodes

    def without_gone(self, numbers: str) -> str:
        """Returns Slurm's numbers for the nodes of the job, such as `8(x2),4`, without those of the nodes that are
        gone."""
        if not self.gone:
            return numbers
        each = [number for number, times in NUMBERS.findall(numbers) for _ in range(int(times or 1))]
        return ",".join(number for number, node in zip(each, self.all) if node not in self.gone)

    def replaceable(self, silent: Sequence[str]) -> List[str]:
        """Returns those of the silent nodes that have ranks; empty if there are not enough spare nodes for them."""
        found = [node for node in self.nodes if node in silent]
        return found if len(found) <= len(self._spare({*silent, *self.lost}, self.all)) else []

    def replace(self, bad: Sequence[str], left: Sequence[str]) -> "Dict[str, str]":
        """Gives the places of bad nodes to spare ones. Returns the spare node of each node that is replaced. Raises
        LookupError if there are not enough of them. left: the nodes that the job still has."""
        lost = {*bad, *self.lost}
        places = [node for node in self.nodes if node in lost or node not in left]
        spare = self._spare(lost, left)
        if len(spare) < len(places) or not self.nodes:
            raise LookupError("{} spare node(s) for {}".format(len(spare), " ".join(bad)))
        replaced = dict(zip(places, spare))
        self.lost = {*lost, *places}
        self._nodes = [replaced.get(node, node) for node in self.nodes]
        return replaced

    def _spare(self, lost: Set[str], left: Sequence[str]) -> List[str]:
        return [node for node in left if node not in lost and node not in self.nodes]

    def step(
        self, words: Sequence[str], environ: Mapping[bytes, bytes], record: Record
    ) -> Tuple[List[str], Dict[bytes, bytes]]:
        """Returns the srun command of the ranks and its environment, and writes the file with the nodes."""
        words, environ = list(words), dict(environ)
        if not self.nodes:
            return words, environ
        environ[b"CLUSTERDP_NODES"] = os.fsencode(self.text)
        tasks = range(self._rules.tasks_per_node)
        record.note("hosts", "\n".join(node for node in self.nodes for _ in tasks))
        if self.nodes == [node for node in self.all if node in self.nodes]:
            own = ["--nodelist=" + self.text]
        else:
            own = ["--distribution=arbitrary"]
            words = without(words, OPTIONS)
            environ[b"SLURM_HOSTFILE"] = os.fsencode(os.path.join(record.job.here, "hosts"))
            for name in VARIABLES:
                environ.pop(name, None)
        if self.lost:  # Slurm may wait for tasks on a lost node, and would keep what they hold for nearly a minute
            own.append("--overlap")
        return [words[0], *own, *words[1:]], environ


def without(words: Sequence[str], options: Tuple[str, ...]) -> List[str]:
    """Returns the words of an srun command without these options of srun itself."""
    own = next((i for i, word in enumerate(words[1:], 1) if not word.startswith("-")), len(words))
    return [word for i, word in enumerate(words) if i >= own or not word.startswith(options)]


def places(replaced: Mapping[str, str]) -> str:
    """Returns the places of the next attempt's ranks as words."""
    pairs = ["{} in place of {}".format(spare, node) for node, spare in replaced.items()]
    return "with " + ", ".join(pairs) if pairs else "on the same nodes"
