"""Placement: the nodes of the ranks in a job that may lose nodes, and the srun command that starts the ranks there.

The ranks run on the first of the job's nodes. A spare node takes the place of a node that is lost, so that the ranks of
all other nodes keep their numbers. Without enough spare nodes, a job with a range of nodes goes on with fewer: its
ranks keep their order. srun sorts the nodes of --nodelist. Therefore it reads another order from a file
(--distribution=arbitrary). Then SLURM_PROCID follows the file, but SLURM_NODEID the sorted nodes, and ranks cannot fill
sockets (Slurm 22.05 to 26.05).
"""

import os
import re
from typing import Dict, List, Mapping, Sequence, Set, Tuple

from ..decide.evidence import ENDED
from ..decide.policy import size_on
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
        """The nodes of the ranks, in the order of the ranks; empty in a job that may lose none."""
        if self._rules.may_lose_nodes and not self._nodes:
            self.all = self._slurm.expand(self._job.nodes)
            if len(self.all) < self._rules.nodes:
                raise OSError("scontrol show hostnames {} gives no list of the nodes".format(self._job.nodes))
            self._nodes = self.all[: self._rules.nodes]
        return self._nodes

    @property
    def text(self) -> str:
        """The nodes of the ranks as a list of Slurm."""
        return ",".join(self.nodes) or self._job.nodes

    @property
    def size(self) -> int:
        """The number of nodes with ranks."""
        return len(self.nodes) or self._rules.nodes

    def without_gone(self, numbers: str) -> str:
        """Returns Slurm's numbers for the nodes of the job, such as `8(x2),4`, without those of the nodes that are
        gone."""
        if not self.gone:
            return numbers
        each = [number for number, times in NUMBERS.findall(numbers) for _ in range(int(times or 1))]
        return ",".join(number for number, node in zip(each, self.all) if node not in self.gone)

    def wordless(self, said: str) -> List[str]:
        """Returns the nodes with ranks, of none of which srun has reported the end. said: the job's output."""
        found = self._slurm.expand(",".join(ENDED.findall(said))) if self.nodes else []
        return [node for node in self.nodes if found and node not in found]

    def replaceable(self, silent: Sequence[str]) -> List[str]:
        """Returns those of the silent nodes that have ranks; empty if the ranks cannot start again without them."""
        found = [node for node in self.nodes if node in silent]
        good = [node for node in self.all if node not in silent and node not in self.lost]
        return found if size_on(len(good), self._rules) else []

    def replace(self, bad: Sequence[str], left: Sequence[str]) -> "Dict[str, str]":
        """Gives the places of bad nodes to spare ones, as long as there are some; the other places are no more. Returns
        the nodes that have no ranks any more, each with its spare node, or "" if it has none. Raises LookupError if too
        few nodes are left. left: the nodes that the job still has."""
        lost = {*bad, *self.lost}
        places = [node for node in self.nodes if node in lost or node not in left]
        good = [node for node in left if node not in lost]
        size = size_on(len(good), self._rules)
        if not size or not self.nodes:
            raise LookupError("{} good node(s) are left without {}".format(len(good), " ".join(bad)))
        replaced = dict(zip(places, [node for node in good if node not in self.nodes]))
        after = [replaced.get(node, node) for node in self.nodes if node in replaced or node not in places]
        self.lost = {*lost, *places}
        self._nodes, before = after[:size], self._nodes
        return {node: replaced.get(node, "") for node in before if node not in self._nodes}

    def step(
        self, words: Sequence[str], environ: Mapping[bytes, bytes], record: Record
    ) -> Tuple[List[str], Dict[bytes, bytes]]:
        """Returns the srun command of the ranks and its environment, and writes the file with the nodes."""
        words, environ = list(words), dict(environ)
        if not self.nodes:
            return words, environ
        environ[b"CLUSTERDP_NODES"] = os.fsencode(self.text)
        tasks = self._rules.tasks_per_node
        record.note("hosts", "\n".join(node for node in self.nodes for _ in range(tasks)))
        words = with_sizes(words, self.size, self.size * tasks)
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
    own = _count_of_own(words)
    return [word for i, word in enumerate(words) if i >= own or not word.startswith(options)]


def with_sizes(words: Sequence[str], nodes: int, tasks: int) -> List[str]:
    """Returns the words of an srun command with these numbers of nodes and tasks in place of its own."""
    own, sizes = _count_of_own(words), {"--nodes": nodes, "--ntasks": tasks}
    names = [word.partition("=")[0] if i < own else "" for i, word in enumerate(words)]
    return ["{}={}".format(name, sizes[name]) if name in sizes else word for name, word in zip(names, words)]


def _count_of_own(words: Sequence[str]) -> int:
    """Returns the number of the words of srun itself."""
    return next((i for i, word in enumerate(words[1:], 1) if not word.startswith("-")), len(words))


def places(replaced: Mapping[str, str], size: int) -> str:
    """Returns the places of the next attempt's ranks as words. size: the number of their nodes."""
    pairs = ["{} in place of {}".format(spare, node) for node, spare in replaced.items() if spare]
    dropped = [node for node, spare in replaced.items() if not spare]
    if dropped:
        pairs.append("on {} node(s), without {}".format(size, ", ".join(dropped)))
    said = ", ".join(pairs)
    return "on the same nodes" if not said else said if said.startswith("on ") else "with " + said
