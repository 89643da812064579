"""Which nodes later attempts avoid. Pure."""

import re
from typing import Iterable, List, Sequence

FAILED_LAUNCH = re.compile(r"^srun: error: Task launch for .* failed on node ([^: \n]+): .*", re.MULTILINE)


def not_launched(said: str) -> List[str]:
    """The nodes on which srun could not launch a task: slurmd is dead there, and Slurm does not know it yet."""
    return sorted(set(FAILED_LAUNCH.findall(said)))


def avoided(wanted: Iterable[str], usable: Sequence[str], needed: int, always: str, must: Sequence[str]) -> str:
    """The value of ExcNodeList: `always`, and of the wanted nodes, which come in the order of their weight, as many as
    leave so many usable nodes as the job needs: it would else wait for ever. must: the job is bound to these."""
    names = [name for name in always.split(",") if name]
    left = len(usable)
    for node in wanted:
        if node in must or node in names:
            continue
        if node in usable:
            if left <= needed:
                break
            left -= 1
        names.append(node)
    return ",".join(names)
