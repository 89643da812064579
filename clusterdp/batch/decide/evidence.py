"""Evidence: finds the reason of a failure in the last lines of the ranks' logs and in Slurm's lines in the job's
output. Pure."""

import re
from functools import lru_cache
from typing import Dict, List, NamedTuple, Optional, Sequence

from ..files.texts import number

# Messages about a full disk after which the training continued, so that a later failure has another cause.
WENT_ON = re.compile(r"was not saved \(\d+ in a row\)|What goes there is lost until it can be written again")
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# Messages about full memory from cgroups (two spellings), srun, a Slurm without cgroups, torch, Python and C++.
BY_CGROUP = re.compile("oom[-_]kill event")
OUT_OF_MEMORY = re.compile(
    BY_CGROUP.pattern + r"|tasks? \d[\d,-]*: Out Of Memory|[Ee]xceeded (?:\w+ )?memory limit|OutOfMemoryError|bad_alloc"
    r"|(?:^|: |_Array)MemoryError|an't allocate memory|Cannot allocate memory|(?:CUDA|HIP) error: out of memory"
    r"|(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED|Cuda failure.*'out of memory'"
)
# The messages of a rank whose peer is gone. Such a message is never the rank's own error.
LOST_CONNECTION = re.compile(
    r"DistBackendError|DistNetworkError|Connection (?:closed|reset|refused)|Broken pipe"
    r"|another (?:rank.s failure|failed): rank"
)
# The messages of gloo and NCCL if another rank has not joined a collective. NCCL's watchdog then ends the process
# without an exception. (torch's store reports `wait timeout`.)
COLLECTIVE_TIMEOUT = re.compile(r"Timed out waiting \d+ms for|ollective operation timeout")
ERROR = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception)(?::|$)|(?:[Ff]atal|FATAL|[Ee]rror): ")
# Slurm's own lines in a rank's log. A slurmstepd that writes to a log begins with the time.
BY_SLURM = re.compile(
    r"^slurmstepd[-:]|^\[\d{4}-\d\d-\d\dT[\d:.]+\] (?:\[\S+\] )?error: |error: \*\*\* (?:JOB|STEP) \d"
)
# srun's lines about the ends of tasks: node. Of those that ended with an error: node, tasks, kind of end. srun itself
# ends the other tasks, with `Terminated`.
ENDED = re.compile(r"^srun: error: ([^: \n]+): tasks? \d[\d,-]*: ", re.MULTILINE)
TASKS_ENDED = re.compile(r"^srun: error: ([^: \n]+): tasks? (\d[\d,-]*): (?!Terminated$)(.+)$", re.MULTILINE)
ASKED = "Exited with exit code 75"
FORCED = "srun: forcing job termination"
KILLED = re.compile(r"srun: error: [^: ]+: tasks? [0-9][0-9,-]*: Killed$")
OF_SLURM = re.compile(BY_SLURM.pattern + "|^srun:")
CHAINED = re.compile("During handling of the above exception|was the direct cause of the following exception")
# The error of a process that notices a kill of its child
KILLED_CHILD = re.compile(r"SIGKILL|[Kk]illed|exited unexpectedly|terminated abruptly|BrokenProcessPool|code:? -?9\b")
SRUN_FAILED = re.compile(r"^srun: (?:error|fatal): (?!\S+: tasks? \d)(.+)$", re.MULTILINE)
# The beginning of such a line if srun gives up. Lines of plugins may come before.
GIVES_UP = re.compile(r"Unable to|Application launch failed|.*[Tt]ask launch|.*launch failed|Job step")
# Slurm did not answer, or the nodes were not ready: not a mistake in the request
FOR_A_WHILE = re.compile(
    r"[Tt]imed out|Zero Bytes|[Aa]uthentication|[Cc]redential|revoked|[Cc]ontact|[Cc]ommunication|[Cc]onnection|[Bb]usy"
)
BRIEF_S = 60
END = 4096  # bytes that are read at the end of a log


class Fault(NamedTuple):
    """An end that neither Slurm nor the user has requested. how: the kind of end, as text."""

    cause: str
    how: str


class Failure(NamedTuple):
    """The rank that failed first. Unknown fields are empty or None."""

    error: str = ""
    node: str = ""
    step: str = ""
    reported: str = ""  # srun's line about the rank
    rank: Optional[int] = None


class Mistake(NamedTuple):
    """A failure in a form that can be compared with failures of other attempts."""

    node: str
    step: str
    brief: bool  # whether the failure came within a minute of the start
    what: str  # the error text without addresses, pids, times and hosts

    def as_text(self) -> str:
        return "{}\n{} {}\n{}".format(self.node, self.step or "-", "yes" if self.brief else "no", self.what)


def fault_of(ends: Sequence[str], said: str, hung: bool, took_s: float, started: bool) -> Fault:
    """Returns the Fault. ends: the last bytes of each rank's log. said: the job's output in this attempt. started:
    whether the attempt has saved or written metrics."""
    if hung:
        return Fault("hung", "hung")
    lines = [line for text in ends for line in _last_words(text)]
    lines += [line for line in said.split("\n") if OF_SLURM.match(line)]
    if survived_kills(ends, said):
        lines = [line for line in lines if not BY_CGROUP.search(line)]
    for line in dict.fromkeys(reversed(lines)):
        disk = () if "/dev/shm/nccl" in line else DISK_FULL.finditer(line)  # /dev/shm is memory of a node, and no disk
        found = [*OUT_OF_MEMORY.finditer(line), *disk]
        if found:
            last = max(found, key=lambda match: match.start())
            if DISK_FULL.match(last.group()):
                return Fault("disk", "found the disk full")
            return Fault("memory", "ran out of memory")
    if _have_timed_out(ends):
        return Fault("hung", "hung")
    if took_s < BRIEF_S and not started:
        return Fault("start", "crashed at its start")
    return Fault("crash", "crashed")


def _last_words(end: str) -> List[str]:
    """Returns the lines of a log's end that may tell the reason of its end: its last own error, the errors from which
    this error follows, and what comes after. Earlier errors were survived. Without an own error, returns all lines."""
    lines = [line for line in end.split("\n") if not WENT_ON.search(line)]
    first, chained = len(lines), True
    for at in range(len(lines) - 1, -1, -1):
        if chained and _is_own_error(lines[at]):
            first, chained = at, False
        chained = chained or CHAINED.search(lines[at]) is not None
    return lines[first:] or lines


def survived_kills(ends: Sequence[str], said: str) -> bool:
    """Returns whether the kernel has killed a process for lack of memory, and the ranks ended in another way: none was
    killed, and the error of a rank has another reason."""
    errors = [error for error in map(own_error, ends) if error]
    killed = any(not how.startswith("Exited") for _, _, how in TASKS_ENDED.findall(said))
    is_child = any(KILLED_CHILD.search(error) for error in errors)
    return BY_CGROUP.search(said) is not None and bool(errors) and not killed and not is_child


def refusal_of(said: str) -> str:
    """Returns srun's line about its own failure; empty if there is none. said: the job's output, if no task began."""
    found = SRUN_FAILED.findall(said)
    return next(filter(GIVES_UP.match, found), found[-1] if found else "") if not TASKS_ENDED.search(said) else ""


def _have_timed_out(ends: Sequence[str]) -> bool:
    """Returns whether a collective has timed out, and no rank has another error, because of which others waited."""
    errors = [own_error(end) for end in ends]
    others = [error for error in errors if error and not COLLECTIVE_TIMEOUT.search(error)]
    return not others and any(COLLECTIVE_TIMEOUT.search(end) for end in ends)


def without_kills(said: str) -> str:
    """Returns the job's output without srun's lines about tasks that the batch program has killed, because they are no
    evidence. Such lines come after srun has got TERM, and before the batch program's next line."""
    kept, is_forced = [], False
    for line in said.split("\n"):
        is_forced = line == FORCED or (is_forced and not line.startswith("clusterdp: "))
        if not (is_forced and KILLED.match(line)):
            kept.append(line)
    return "\n".join(kept)


def failure_of(note: Sequence[str], said: str, logs: Dict[int, str], by_agents: bool = False) -> Failure:
    """Returns the Failure. note: the lines of attempts/*/error, if a rank has written this file. said: the job's output
    in this attempt. logs: the last bytes of each rank's log, by rank, ordered by the time of the last write. by_agents:
    whether srun's tasks are torchrun's agents, and not the ranks."""
    if note and note[0] + "".join(note[1:3]):
        node, step, error, by = ([*list(note), "", "", "", ""])[:4]
        return Failure(error, node, step, "", number(by))
    ended = [(node, int(re.split("[,-]", tasks)[0]), how) for node, tasks, how in TASKS_ENDED.findall(said)]
    of_tasks = {} if by_agents else logs
    # srun lists tasks in the order of their ends, but a rank that only lost its connection may end before the rank that
    # failed.
    by_itself = [each for each in ended if not has_followed(of_tasks.get(each[1], ""))]
    error, node, reported, rank = "", "", "", None
    for node, task, how in (by_itself or ended)[:1]:
        reported = "srun: {}: task {}: {}".format(node, task, how)
        error, rank = own_error(of_tasks.get(task, "")), None if by_agents or not logs else task
        if not error and not how.startswith("Exited"):  # a signal killed the rank, which ended the other ranks
            return Failure("", node, "", reported, rank)
    if not error:
        for each, log in logs.items():
            error = own_error(log)
            if error:
                rank = each
                node = next((at for at, task, _ in ended if task == each and task in of_tasks), node)
                break
    if not error and ended and not by_itself:
        return Failure(reported=reported)  # each rank ended because of another: the first is not to blame
    return Failure(error, node, "", reported, rank)


def is_of_an_image(failure: Failure, said: str, logs: Dict[int, str]) -> bool:
    """Returns whether a container's engine has ended with the same line on several nodes: no node is to blame."""
    ended = [(node, int(re.split("[,-]", tasks)[0])) for node, tasks, _ in TASKS_ENDED.findall(said)]
    nodes = {node for node, task in ended if own_error(logs.get(task, "")) == failure.error}
    return failure.error.startswith("FATAL: ") and len(nodes) > 1


def has_followed(end: str) -> bool:
    """Returns whether a log ends with a lost connection, and has no error of the rank itself."""
    return LOST_CONNECTION.search(end) is not None and not own_error(end)


def own_error(end: str) -> str:
    """Returns the last error at the end of a log that was not caused by the end of another rank."""
    return next(filter(_is_own_error, reversed(end.split("\n"))), "")


@lru_cache(maxsize=4096)  # the logs of thousands of ranks have the same lines
def _is_own_error(line: str) -> bool:
    return bool(ERROR.search(line) and not LOST_CONNECTION.search(line) and not BY_SLURM.search(line))


ALIKE = [
    (re.compile(r"0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"[0-9]+(?:\.[0-9]+){3}"), "HOST"),
]
ALIKE_AFTER_NAMES = [
    (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "DATE"),
    (re.compile(r"[0-9]+:[0-9]{2}(?::[0-9]{2})?(?:[.,][0-9]+)?"), "TIME"),
    (re.compile(r"[0-9]{4,}"), "NUMBER"),
    (re.compile(r"([Pp]id|[Rr]ank|[Pp]rocess|[Tt]ask)([ =:]+)[0-9]+"), r"\1\2NUMBER"),
]


def mistake_of(failure: Failure, took_s: float, hosts: Sequence[str]) -> Optional[Mistake]:
    """Returns the failure in a form that can be compared; None if it has no error."""
    if not failure.error:
        return None
    what = failure.error
    for pattern, word in ALIKE:
        what = pattern.sub(word, what)
    names = [re.escape(host) for host in dict.fromkeys([failure.node, *hosts]) if host]
    what = re.sub("|".join(names), "HOST", what) if names else what
    for pattern, word in ALIKE_AFTER_NAMES:
        what = pattern.sub(word, what)
    return Mistake(failure.node, failure.step, took_s < BRIEF_S, what)


def mistake_from(lines: Sequence[str]) -> Optional[Mistake]:
    """Returns the Mistake that an earlier attempt has recorded."""
    node, when, what = ([*list(lines), "", "", ""])[:3]
    step, _, brief = when.partition(" ")
    return Mistake(node, "" if step == "-" else step, brief == "yes", what) if what else None


def is_repeated(mistake: Mistake, earlier: Sequence[Mistake], others: bool) -> bool:
    """Returns whether the same error has ended an earlier attempt: at the same step, or both times within a minute of
    the start, and on another node if there are `others` to try. earlier: the mistakes since the last checkpoint."""
    for each in [each for each in earlier if each.what == mistake.what]:
        same_time = (each.brief and mistake.brief) or (mistake.step and each.step == mistake.step)
        if same_time and not (each.node == mistake.node and others):
            return True
    return False


def first_to_exit(said: str) -> str:
    """Returns how the first rank ended. srun then kills the other ranks, and exits with the signal that killed them."""
    found = re.search(r"^srun: error: [^ :]+: tasks? [0-9][^:]*: (.*)", said, re.MULTILINE)
    return found.group(1) if found else ""


def code_of(how: str) -> Optional[int]:
    """Returns the exit code in srun's words about the end of a task; None if a signal has ended the task."""
    found = re.match(r"Exited with exit code ([0-9]+)$", how)
    return int(found.group(1)) if found else None


def has_taken_port(text: str) -> bool:
    """Returns whether the port is taken, although it was free when it was probed."""
    return re.search(r"EADDRINUSE|[Aa]ddress already in use", text) is not None
