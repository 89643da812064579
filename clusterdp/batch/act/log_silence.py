"""LogSilence: finds out whether a program hangs that does not report its steps, by its logs and its CPU time."""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..files.rules import Rules
from ..nodes.placement import Placement
from ..processes.children import Children

# The script prints for each process on a node: node, pid, state, ticks of CPU time (including ended children), command.
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


class HangFinding(NamedTuple):
    """A hang of the program, or its end."""

    hangs: bool  # whether the program hangs; False: it continues after a hang
    reason: str = ""
    processes: str = ""
    ends: bool = False  # whether the step must be ended


class LogSilence:
    """restart.hang_after_s: the program hangs if, for this time, no log has grown, and in the second half of the time,
    no process has used CPU time. A program that waits for NCCL keeps a core busy, and is not found in this way.

    This process checks the sizes of the logs. Only while the logs do not grow, a small step lists the processes of each
    node. look() is called every `pause_s`. Time for which the job is suspended does not count.
    """

    def __init__(self, rules: Rules, logs: str, children: Children, placement: Placement) -> None:
        self.rules = rules
        self.placement = placement
        self.logs = logs
        self.children = children
        self.pause_s = max(rules.silence_s // 10, 1)
        self._half_s = max(rules.silence_s // 2, 1)
        self._sizes: Optional[Dict[str, Tuple[int, int]]] = None
        self._silent_s = 0
        self._since_s = 0
        self._before = ""
        self._reason = ""

    def look(self) -> Optional[HangFinding]:
        """Returns the HangFinding since the last call; None if nothing has changed."""
        self._silent_s += self.pause_s
        sizes = _sizes(self.logs)
        if sizes != self._sizes:
            self._sizes, self._silent_s, self._since_s, self._before = sizes, 0, 0, ""
            return self._goes_on()
        if self._silent_s - self._since_s < self._half_s:
            return None
        now = self._processes()
        if not _ticks(now):
            return None  # srun has failed: that says nothing about the program
        found = self._compare(now) if self._before else None
        self._before, self._since_s = now, self._silent_s
        return found

    def _goes_on(self) -> Optional[HangFinding]:
        told, self._reason = self._reason, ""
        return HangFinding(False) if told else None

    def _compare(self, now: str) -> Optional[HangFinding]:
        idle_s = self._silent_s - self._since_s
        if not is_idle(self._before, now, idle_s):
            return self._goes_on()
        limit = {"restart": self.rules.silence_s, "report": 0}.get(self.rules.on_hang, 2 * self.rules.silence_s)
        ends = bool(limit) and self._silent_s >= limit
        if self._reason and not ends:
            return None
        words = "no output for {} s, and no process has used CPU time in the last {} s"
        fresh, self._reason = not self._reason, self._reason or words.format(self._silent_s, idle_s)
        return HangFinding(True, self._reason if fresh else "", now, ends)

    def _processes(self) -> str:
        nodes = str(self.placement.size)
        words = ["srun", "--overlap", "--mem=0", "--time=1", "--nodes=" + nodes, "--ntasks=" + nodes]
        if self.placement.nodes:
            words.append("--nodelist=" + self.placement.text)
        words += ["--ntasks-per-node=1", "--cpus-per-task=1", "bash", "-c", LIST_PROCESSES]
        return self.children.run(words, err=False).said


def is_idle(before: str, after: str, seconds: float) -> bool:
    """Returns whether no process has used 1 % of a core or more. A new process counts as busy."""
    used, now = _ticks(before), _ticks(after)
    return all(key in used and ticks - used[key] < seconds for key, ticks in now.items())


def _ticks(said: str) -> Dict[Tuple[str, str], int]:
    rows: List[List[str]] = [line.split(None, 4) for line in said.split("\n")]
    return {(row[0], row[1]): int(row[3]) for row in rows if len(row) > 3 and row[3].isdigit()}


def _sizes(folder: str) -> Dict[str, Tuple[int, int]]:
    """Returns the size of each file and the time of its last change in nanoseconds."""
    found = {}
    try:
        for entry in os.scandir(folder):
            status = entry.stat()
            found[entry.name] = (status.st_size, status.st_mtime_ns)
    except OSError:
        pass
    return found
