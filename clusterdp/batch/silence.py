"""restart.hang_after_s: the program hangs when no log has grown for so long, and none of its processes has used CPU
time in the second half of that.

A program that waits for NCCL keeps a core busy, and is not found so. The sizes of the logs are looked at from here.
Only while they are silent, a small step looks at the processes of each node.
"""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from .children import Children
from .rules import Rules

# On each node: node, pid, state, ticks of CPU time (its ended children's too), command.
LIST_PROCESSES = r"""
files=$(grep -lzsx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ)
[ -z "$files" ] || files=$(grep -lzsE '^SLURM_STEP_ID=[0-9]+$' $files)
[ -z "$files" ] || files=$(grep -Lzsx "SLURM_STEP_ID=$SLURM_STEP_ID" $files)
for file in $files; do
  read -r stat 2>/dev/null <"${file%environ}stat" || continue
  command=${stat#*\(} command=${command%\)*}
  set -- "${stat%% *}" ${stat##*) }
  echo "$SLURMD_NODENAME $1 $2 $((${13} + ${14} + ${15} + ${16})) $command"
done
"""


class Finding(NamedTuple):
    """The program hangs; or it goes on, after it was found to hang. ends: the step is to be ended."""

    hangs: bool
    reason: str = ""
    processes: str = ""
    ends: bool = False


class Silence:
    """Is asked every `pause_s`. The time in which a job is suspended does not count."""

    def __init__(self, rules: Rules, logs: str, children: Children) -> None:
        self.rules = rules
        self.logs = logs
        self.children = children
        self.pause_s = max(rules.silence_s // 10, 1)
        self._half_s = max(rules.silence_s // 2, 1)
        self._sizes: Optional[Dict[str, Tuple[int, int]]] = None
        self._silent_s = 0
        self._since_s = 0
        self._before = ""
        self._reason = ""

    def look(self) -> Optional[Finding]:
        """What has changed since the last look; None: nothing."""
        self._silent_s += self.pause_s
        sizes = _sizes(self.logs)
        if sizes != self._sizes:
            self._sizes, self._silent_s, self._since_s, self._before = sizes, 0, 0, ""
            return self._goes_on()
        if self._silent_s - self._since_s < self._half_s:
            return None
        now = self._processes()
        found = self._compare(now) if self._before else None
        self._before, self._since_s = now, self._silent_s
        return found

    def _goes_on(self) -> Optional[Finding]:
        told, self._reason = self._reason, ""
        return Finding(False) if told else None

    def _compare(self, now: str) -> Optional[Finding]:
        idle_s = self._silent_s - self._since_s
        if not is_idle(self._before, now, idle_s):
            return self._goes_on()
        limit = {"restart": self.rules.silence_s, "report": 0}.get(self.rules.on_hang, 2 * self.rules.silence_s)
        ends = bool(limit) and self._silent_s >= limit
        if self._reason and not ends:
            return None
        words = "no output for {} s, and no process has used CPU time in the last {} s"
        fresh, self._reason = not self._reason, self._reason or words.format(self._silent_s, idle_s)
        return Finding(True, self._reason if fresh else "", now, ends)

    def _processes(self) -> str:
        nodes = str(self.rules.nodes)
        words = ["srun", "--overlap", "--mem=0", "--time=1", "--nodes=" + nodes, "--ntasks=" + nodes]
        words += ["--ntasks-per-node=1", "--cpus-per-task=1", "bash", "-c", LIST_PROCESSES]
        return self.children.run(words, err=False).said


def is_idle(before: str, after: str, seconds: float) -> bool:
    """Whether no process has used 1 % of a core or more. One that has come is at work."""
    used, now = _ticks(before), _ticks(after)
    return bool(now) and all(key in used and ticks - used[key] < seconds for key, ticks in now.items())


def _ticks(said: str) -> Dict[Tuple[str, str], int]:
    rows: List[List[str]] = [line.split(None, 4) for line in said.split("\n")]
    return {(row[0], row[1]): int(row[3]) for row in rows if len(row) > 3 and row[3].isdigit()}


def _sizes(folder: str) -> Dict[str, Tuple[int, int]]:
    """Of each file, its size and the time of its last change in nanoseconds."""
    found = {}
    try:
        for entry in os.scandir(folder):
            status = entry.stat()
            found[entry.name] = (status.st_size, status.st_mtime_ns)
    except OSError:
        pass
    return found
