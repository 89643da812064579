"""Slurm: all requests to the controller. No other module runs Slurm's commands, except the step's srun.

An attempt runs `squeue` once at its start, `scontrol show job` once at its end, and once more when its first task has
failed. `scontrol show node` runs only if other nodes cannot resolve the first host's name, `sinfo` only if nodes are
avoided, and after a failure. In a --no-kill job, keepers look at the job, too (see keeper.py). If the controller does
not answer, it is asked again for half an hour, with pauses that double up to a minute, because a failover may take more
than ten minutes.
"""

import os
import re
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..files.job import Job
from ..files.texts import warn
from .children import Answer, Children

RUNNING, PREEMPTED, TIME_LIMIT = "running", "preempted", "time-limit"
REQUEUED = "requeued"  # another attempt has the job, or will have it
ENDING = "ending"  # cancelled
UNKNOWN = "unknown"
OVER = tuple("COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY REVOKED".split())
GOES_ON = (RUNNING, PREEMPTED, TIME_LIMIT)  # in these states, a job may be requeued
OVERLAPS = (22, 5)  # release of Slurm
PATIENCE_S = 1800
PENDING_S = 30
ANSWER_S = 10
USABLE = ("idle", "mixed", "allocated", "completing", "planned")
WAITS = ("Resources", "Priority", "None")  # reasons of jobs that wait for nodes
SLEEPING = "~#!%-+"  # marks of sinfo at the state of a node that a job can have; others are `*` (silent), `$`, `@`, `^`
# Slurm's own lines, which start like this. Plugins and a site's wrappers print any text around them, on both streams.
OURS = r"(?m)^(?:scontrol: error: |slurm_\w+ error: ?)?"
FORGOTTEN = re.compile(OURS + "Invalid job id specified")
IS_QUICKER = re.compile(OURS + "Job is pending execution")
IS_FORBIDDEN = re.compile(OURS + "Requested operation is presently disabled")
RELEASE = re.compile(r"(?m)^slurm(?:-wlm)? (\d+)\.(\d+)")
FIRST, LAST = "clusterdp-first", "clusterdp-last"  # names around a host list
FOR_PEOPLE = (b"SQUEUE_", b"SINFO_", b"SLURM_TIME_FORMAT")


class Look(NamedTuple):
    """state: the state of this job, one of the words above. excluded: ExcNodeList. ends_at: the time limit in seconds
    since 1970; None without a limit. nodes: NodeList, without nodes that a --no-kill job has lost. tasks: NumTasks."""

    state: str
    excluded: str = ""
    ends_at: Optional[float] = None
    nodes: str = ""
    tasks: int = 0


def fields_of(said: str) -> Dict[str, str]:
    """Returns the fields that `scontrol show` prints; empty if Slurm has not answered. Of several fields with one name,
    the first is taken, because a comment or a path of the user may look like a field."""
    shown = re.search(r"(?m)^(?:JobId|ReservationName)=", said)
    return dict(reversed(re.findall(r"(?<!\S)(\w+)=(\S*)", said[shown.start() :]))) if shown else {}


def steps_share_memory(children: Children) -> bool:
    """Returns whether steps with --overlap share all resources of the job. Before Slurm 22.05, they share CPUs only:
    another step would wait for their memory."""
    said = children.run(["srun", "--version"]).said
    release = RELEASE.search(said)
    if release is None:
        warn("srun --version: has not named its release, so there are no copies in memory: " + said[-200:])
    return release is not None and (int(release.group(1)), int(release.group(2))) >= OVERLAPS


def time_of(stamp: str) -> Optional[float]:
    """Returns a time of scontrol in seconds since 1970; None for `Unknown`."""
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def state_of(fields: Mapping[str, str], restart: int) -> str:
    """Returns the state of a job's attempt with this restart count."""
    state, restarts = fields.get("JobState", ""), fields.get("Restarts", "")
    if restarts.isdigit() and int(restarts) > restart:
        return REQUEUED
    if state == "RUNNING":
        # PREEMPTED: the job is in its grace time. If SLURM_TIME_FORMAT is set, a time may begin with any text.
        return RUNNING if fields.get("PreemptTime", "None") in ("None", "(null)", "") else PREEMPTED
    if state == "COMPLETING" and fields.get("Reason") == "TimeLimit":
        return TIME_LIMIT
    return ENDING


class Slurm:
    def __init__(self, children: Children, job: Job) -> None:
        self.children = children
        self.job = job

    def ask(self, words: List[str], err: bool = True, limit_s: Optional[float] = None) -> Answer:
        """Runs a command of Slurm without the submitter's display settings, because SLURM_TIME_FORMAT changes the form
        of times."""
        ours = self.children.own.items()
        environ = {name: value for name, value in ours if not name.startswith(FOR_PEOPLE)}
        if words[0] == "squeue":
            environ[b"SLURM_TIME_FORMAT"] = b"%s"  # makes Slurm print times in seconds since 1970
        return self.children.run(words, err, environ, limit_s)

    def look(self) -> Look:
        """Returns the state of this job. If a TERM came meanwhile, asks the controller again, because the answer may be
        out of date."""
        pause, waited = 1, 0
        while True:
            before = self.children.terms
            answer = self.ask(["scontrol", "show", "job", self.job.id])
            is_shown = bool(fields_of(answer.said))
            if (is_shown and before == self.children.terms) or FORGOTTEN.search(answer.said):
                return self._look(answer.said)  # the job id is unknown: the job is over, and Slurm has forgotten it
            if is_shown:
                continue
            if waited >= PATIENCE_S:
                return Look(UNKNOWN)
            if pause >= 60:
                words = "no answer from Slurm's controller for {} minutes: {}"
                warn(words.format(waited // 60, answer.said))
            self.children.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, 60)

    def _look(self, said: str) -> Look:
        fields = fields_of(said)
        excluded = fields.get("ExcNodeList", "")
        return Look(
            state_of(fields, self.job.restart),
            "" if excluded == "(null)" else excluded,
            time_of(fields.get("EndTime", "")),
            fields.get("NodeList", ""),
            int(fields.get("NumTasks", "0")) if fields.get("NumTasks", "").isdigit() else 0,
        )

    def glance(self) -> Look:
        """Returns the state of this job; UNKNOWN if the controller does not answer at once."""
        answer = self.ask(["scontrol", "show", "job", self.job.id], err=False, limit_s=ANSWER_S)
        return self._look(answer.said) if fields_of(answer.said) else Look(UNKNOWN)

    def was_cancelled(self, job: str) -> bool:
        """Returns whether another job is on record as cancelled."""
        said = self.ask(["scontrol", "show", "job", job], err=False).said
        return fields_of(said).get("JobState") == "CANCELLED"

    def is_alive(self, job: str, script: str) -> bool:
        """Returns whether another job of this script has its nodes. Another cluster's job may have the same number."""
        fields = fields_of(self.ask(["scontrol", "show", "job", job], err=False, limit_s=ANSWER_S).said)
        path = fields.get("Command", "")  # up to the first blank
        ours = [os.path.realpath(each) for each in (script.partition(" ")[0], path)]
        return fields.get("JobState") in ("RUNNING", "SUSPENDED") and ours[0] == ours[1]

    def is_in_queue(self, job: str) -> bool:
        """Returns whether another job is waiting or has its nodes."""
        fields = fields_of(self.ask(["scontrol", "show", "job", job], err=False).said)
        return fields.get("JobState", "COMPLETED") not in OVER

    def wait_also_for(self, job: str, other: str) -> None:
        """Makes a job that waits for this job wait for another one, too, in the same way."""
        fields = fields_of(self.ask(["scontrol", "show", "job", job], err=False).said)
        waits = re.sub(r"\(\w+\)|_\*", "", fields.get("Dependency", ""))
        kind = re.search(r"\b(afterok|afterany):{}(?![0-9])".format(self.job.id.partition("_")[0]), waits)
        if kind and fields.get("JobState") == "PENDING":
            words = "Dependency={},{}:{}".format(waits, kind.group(1), other)
            self.ask(["scontrol", "update", "JobId=" + job, words])

    def requeue(self) -> Answer:
        return self.ask(["scontrol", "requeue", self.job.id])

    def exclude(self, job: str, nodes: str) -> None:
        """Sets ExcNodeList of the job. Call exclude() after a requeue, because Slurm (22.05 to 26.05) cannot change the
        list of a running job."""
        self.ask(["scontrol", "update", "JobId=" + job, "ExcNodeList=" + nodes])

    def set_tasks(self, tasks: int) -> None:
        """Sets NumTasks of this job after its requeue. Slurm 22.05 has set it to the tasks of all nodes that the job
        had, and would wait for as many nodes again."""
        self.ask(["scontrol", "update", "JobId=" + self.job.id, "NumTasks={}".format(tasks)])

    def begin_later(self, job: str, seconds: int) -> None:
        """Makes a requeued job wait in the queue."""
        self.ask(["scontrol", "update", "JobId=" + job, "StartTime=now+{}".format(seconds)])

    def begin_later_when_pending(self, end: float) -> None:
        """Calls begin_later() after the job has become pending, because Slurm 22.05 then sets its own start time. end:
        the time to give up, by the monotonic clock."""
        for _ in range(PENDING_S):
            said = self.ask(["scontrol", "show", "job", self.job.id], err=False).said
            if fields_of(said).get("JobState") == "PENDING":
                self.begin_later(self.job.id, int(end - time.monotonic()))
                return
            time.sleep(1)

    def cancel(self, job: str) -> bool:
        return self.ask(["scancel", job]).code == 0

    def end_by_limit(self) -> bool:
        """Ends a job that has no script, and that a next job replaces: after a scancel, that one would not start."""
        return self.ask(["scontrol", "update", "JobId=" + self.job.id, "TimeLimit=1"]).code == 0

    def submit(self, script: str, options: List[str], variables: Dict[str, str], after: str = "") -> Tuple[int, str]:
        """Returns the exit code of sbatch, and the id of the new job, which begins after this job, and after those that
        `after` names. The id is searched in the output, because a
        site's wrapper of sbatch may print more lines."""
        waits = "--dependency=afterany:" + self.job.id + ("," + after if after else "")
        words = ["sbatch", "--parsable", waits, *options, script]
        environ = dict(self.children.own)  # the next job gets the environment of the batch script
        environ.update({os.fsencode(name): os.fsencode(value) for name, value in variables.items()})
        answer = self.children.run(words, err=False, environ=environ)
        numbers = [line.partition(";")[0].strip() for line in answer.said.split("\n")]
        numbers = [word for word in numbers if re.match("[0-9]+$", word)]
        return answer.code, numbers[-1] if numbers else ""

    def waiting(self, script: str) -> str:
        """Returns the job of the same script that waits for the end of this job; empty if there is none."""
        words = ["squeue", "--me", "--noheader", "--states=PENDING", "--format=%F|%E|%o"]
        after = re.compile(r":" + re.escape(self.job.id) + r"(?![0-9_])")
        found = ""
        for line in self.ask(words, err=False).said.split("\n"):
            number, _, rest = line.partition("|")
            waits, _, name = rest.partition("|")
            if name == script and after.search(waits):
                found = number
        return found

    # -- nodes --

    def down_nodes(self, nodes: str, states: str = "down,fail,no_respond,unknown") -> List[str]:
        """Returns those nodes of the list that Slurm shows as down or lost, or in one of other `states`."""
        words = ["sinfo", "--noheader", "--Node", "--nodes=" + nodes, "--states=" + states, "--format=%N|%T"]
        said = self.ask(words, err=False).said if nodes else ""
        return sorted(set(re.findall(r"(?m)^([\w.-]+)\|[a-z]\S*\s*$", said)))

    def has_waiting(self) -> bool:
        """Returns whether a job waits for nodes of this job's partition; True if Slurm does not answer."""
        words = ["squeue", "--noheader", "--partition=" + self.job.partition, "--states=PENDING", "--format=%r"]
        answer = self.ask(words, err=False)
        return answer.code != 0 or any(line.strip() in WAITS for line in answer.said.split("\n"))

    def usable_nodes(self, without: str, usable: Tuple[str, ...] = USABLE) -> List[str]:
        """Returns the nodes on which this job could run: nodes that are up, in its partition and reservation, with the
        same hardware as the job's nodes. without: a list of nodes that are never usable. usable: states."""
        kind, reservation = "%c|%m|%G|%f", self.job.reservation
        alike = self._sinfo("--nodes=" + self.job.nodes, kind)
        never, found = set(self.expand(without)), set()
        states = (*usable, "reserved") if reservation else usable  # Slurm shows its idle nodes as reserved
        if reservation:
            shown = fields_of(self.ask(["scontrol", "show", "reservation", reservation], err=False).said)
            reserved = set(self.expand(shown.get("Nodes", "")))
        for line in self._sinfo("--partition=" + self.job.partition, "%T %N " + kind):
            state, node, shape = ([*line.split(None, 2), "", "", ""])[:3]
            is_ours = node not in never and (not reservation or node in reserved)
            if is_ours and state.rstrip(SLEEPING) in states and shape in alike:
                found.add(node)
        return sorted(found)

    def _sinfo(self, which: str, form: str) -> List[str]:
        answer = self.ask(["sinfo", "--noheader", "--Node", which, "--format=" + form], err=False)
        return answer.said.split("\n") if answer.code == 0 else []

    def expand(self, nodes: str) -> List[str]:
        """Returns the names in a list such as n[1-3]."""
        wanted = ",".join([FIRST, nodes, LAST])
        said = self.ask(["scontrol", "show", "hostnames", wanted], err=False).said.split() if nodes else []
        return said[said.index(FIRST) + 1 : said.index(LAST)] if FIRST in said and LAST in said else []

    def address(self, node: str) -> str:
        """Returns a node's address from Slurm."""
        found = re.search(r"NodeAddr=(\S+)", self.ask(["scontrol", "show", "node", node]).said)
        return found.group(1) if found else node
