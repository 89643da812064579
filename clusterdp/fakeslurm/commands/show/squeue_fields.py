"""The fields of squeue: the value of each letter of -o and each name of -O."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.hostlist import compress
from ...core.model import JobRecord, Step
from ...core.ranges import index_text
from ...core.release import Release
from ...core.state import JobState, exit_word
from ...core.times import limit_clock, minutes, short_clock, stamp
from ...slurmctld.controller import Controller
from ...slurmctld.dependencies import dependency_state
from ...slurmctld.step_plans import shown_path
from ...slurmdbd.accounting import asked_memory, size
from .columns import PrintField

NULL, NONE = "(null)", "N/A"


@dataclass(frozen=True)
class SqueueJob:
    job: JobRecord
    controller: Controller
    time_format: str
    bitstr_len: str | None = None  # SLURM_BITSTR_LEN

    @property
    def user(self) -> str:
        return self.controller.user.name

    def when(self, moment: float | None) -> str:
        form = self.time_format if "%" in self.time_format else "%Y-%m-%dT%H:%M:%S"
        return stamp(moment, NONE, form)

    @property
    def elapsed(self) -> float:
        if self.job.start is None:
            return 0
        return (self.job.end if self.job.end is not None else self.controller.clock()) - self.job.start

    @property
    def end(self) -> float | None:
        job = self.job
        if job.end is not None:
            return job.end
        if job.start is None:
            return None
        return job.start + (job.minutes * self.controller.settings.minute_s if job.minutes else 365 * 24 * 3600)

    @property
    def has_unknown_end(self) -> bool:
        """Whether the job has no time limit. Slurm plans a year for such a job, and does not show its end."""
        return self.job.end is None and not self.job.minutes

    @property
    def time_left(self) -> str:
        job = self.job
        if not job.minutes:
            return "UNLIMITED"
        if job.start is None:
            return short_clock(job.minutes * 60)
        return short_clock(job.minutes * self.controller.settings.minute_s - self.elapsed)

    @property
    def begin(self) -> float | None:
        if self.job.start is not None:
            return self.job.start
        if self.job.planned_start is not None and self.job.waits:
            return self.job.planned_start
        return self.job.begin if self.job.begin > self.controller.clock() else None

    @property
    def number_of_nodes(self) -> int:
        job = self.job
        if job.held_shares:
            return len(job.held_shares)
        # The minimum number of nodes, for a job that has no nodes yet.
        most = max(node.cpus for node in self.controller.model.nodes.values())
        of_a_node = job.desc.tasks_per_node or max(1, most // (job.desc.cpus_per_task or 1))
        least = max(job.desc.min_nodes, -(-(job.desc.tasks or 1) // of_a_node))
        # Once the scheduler has looked at a job with a range of nodes, the job shows the most that it may get.
        looked_at = job.waits and job.last_sched and not job.held and job.reason not in ("Dependency", "BeginTime")
        if not looked_at or not (job.desc.nodes_asked or self.controller.settings.release.most_nodes_shown):
            return job.last_size or least
        return max(least, min(job.desc.max_nodes or 0, len(self.controller.model.nodes)))

    @property
    def tres(self) -> str:
        """The TRES that a job has. Before the job has nodes, the TRES that it asks for, which include memory."""
        job = self.job
        if job.held_shares:
            return f"cpu={self.cpus},node={len(job.held_shares)},billing={self.cpus}"
        return self.asked_tres

    @property
    def asked_tres(self) -> str:
        desc = self.job.desc
        nodes = self.controller.model.nodes.values()
        memory = asked_memory(self.job, min((node.memory_mb for node in nodes), default=0))
        asked, cpus = self.job.left or (desc.min_nodes, desc.asked_cpus)
        return f"cpu={cpus},mem={size(memory)},node={asked},billing={cpus}"

    @property
    def cpus(self) -> int:
        return self.job.cpus or self.job.desc.asked_cpus

    @property
    def dependency(self) -> str:
        return dependency_state(self.controller.model, self.job, self.controller.clock()).text or NULL

    @property
    def waited(self) -> float:
        job = self.job
        return (self.controller.clock() if job.start is None else job.start) - job.submit_time

    @property
    def nodes(self) -> str:
        return compress(self.job.nodes)

    @property
    def reason_or_nodes(self) -> str:
        if self.job.held_shares or self.job.state is JobState.CANCELLED:
            return self.nodes
        return f"({self.job.reason})"

    @property
    def gpus(self) -> str:
        return tres_per_node(self.job, self.gpu_prefix) or NONE

    @property
    def exit_code(self) -> str:
        status = self.job.status
        return exit_word(status) if self.controller.settings.release.squeue_exit_words else str(status)

    @property
    def stderr(self) -> str:
        return self.error_path(self.controller.settings.release.stderr_in_squeue)

    def error_path(self, unasked: str | None) -> str:
        """Returns the path of --error. Without --error: Without --error, returns `unasked`, or if `unasked` is None,
        the path of stdout."""
        desc = self.job.desc
        if unasked is not None and desc.error is None:
            return unasked
        return shown_path(self.job, desc.error or desc.output, self.user, self.controller.settings.release)

    @property
    def gpu_prefix(self) -> str:
        return self.controller.settings.release.gpu_prefix

    @property
    def memory(self) -> str:
        desc = self.job.desc
        amount = desc.mem_per_node if desc.mem_per_cpu is None else desc.mem_per_cpu
        return size(amount) if amount else "0"

    @property
    def task_id(self) -> str:
        if not self.job.array:
            return NONE
        array, length = self.job.array, self.bitstr_len or ""
        if array.split:
            return str(array.indexes[0])
        return index_text(array.indexes, array.throttle, int(length) if length.isdigit() else 64)

    @property
    def name(self) -> str:
        """The id. Returns the job's id as squeue shows it: at most 31 letters for a waiting array, unless
        SLURM_BITSTR_LEN is set."""
        array = self.job.array
        if not array or array.split or array.emptied:
            return self.job.name_of_id
        name = f"{array.id}_[{self.task_id}]"
        return name[:31] if self.bitstr_len is None else name


def tres_per_node(job: JobRecord, gpu_prefix: str) -> str:
    """Returns the value of TresPerNode that scontrol shows."""
    gres, option = job.desc.gpus.gres, job.desc.gpus_per_node_option
    if gres is not None:  # empty text: an update has removed --gres
        return ",".join(gpu_prefix.removesuffix("gpu:") + part for part in gres.split(","))
    return f"{gpu_prefix}{option}" if option else ""


def _f(title: str, value: object) -> PrintField[SqueueJob]:
    return PrintField(title, value)  # type: ignore[arg-type]


LETTERS: dict[str, PrintField[SqueueJob]] = {
    "a": _f("ACCOUNT", lambda r: r.job.desc.account),
    "A": _f("JOBID", lambda r: str(r.job.id)),
    "b": _f("TRES_PER_NODE", lambda r: r.gpus),
    "B": _f("EXEC_HOST", lambda r: r.job.batch_host or "n/a"),
    "c": _f("MIN_CPUS", lambda r: str(min_cpus(r.job))),
    "C": _f("CPUS", lambda r: str(r.cpus)),
    "d": _f("MIN_TMP_DISK", lambda r: "0"),
    "D": _f("NODES", lambda r: str(r.number_of_nodes)),
    "e": _f("END_TIME", lambda r: "NONE" if r.has_unknown_end else r.when(r.end)),
    "E": _f("DEPENDENCY", lambda r: r.dependency),
    "f": _f("FEATURES", lambda r: r.job.desc.features or NULL),
    "F": _f("ARRAY_JOB_ID", lambda r: str(r.job.array.id if r.job.array else r.job.id)),
    "g": _f("GROUP", lambda r: r.controller.user.group),
    "G": _f("GROUP", lambda r: str(r.controller.user.gid)),
    "h": _f("OVER_SUBSCRIBE", lambda r: over_subscribe(r.job, r.controller.settings.release)),
    "H": _f("SOCKETS_PER_NODE", lambda r: "*"),
    "i": _f("JOBID", lambda r: r.name),
    "I": _f("CORES_PER_SOCKET", lambda r: "*"),
    "j": _f("NAME", lambda r: r.job.desc.name),
    "J": _f("THREADS_PER_CORE", lambda r: "*"),
    "k": _f("COMMENT", lambda r: r.job.desc.comment or NULL),
    "K": _f("ARRAY_TASK_ID", lambda r: r.task_id),
    "l": _f("TIME_LIMIT", lambda r: short_clock(r.job.minutes * 60) if r.job.minutes else "UNLIMITED"),
    "L": _f("TIME_LEFT", lambda r: r.time_left),
    "m": _f("MIN_MEMORY", lambda r: r.memory),
    "M": _f("TIME", lambda r: short_clock(r.elapsed)),
    "n": _f("REQ_NODES", lambda r: compress(r.job.desc.nodelist)),
    "N": _f("NODELIST", lambda r: r.nodes),
    "o": _f("COMMAND", lambda r: r.job.desc.command or NULL),
    "O": _f("CONTIGUOUS", lambda r: "0"),
    "p": _f("PRIORITY", lambda r: f"{(0 if r.job.held else r.job.priority) / 2**32:.14f}"),
    "P": _f("PARTITION", lambda r: r.job.desc.partition),
    "q": _f("QOS", lambda r: r.job.desc.qos),
    "Q": _f("PRIORITY", lambda r: str(0 if r.job.held else r.job.priority)),
    "r": _f("REASON", lambda r: r.job.reason),
    "R": _f("NODELIST(REASON)", lambda r: r.reason_or_nodes),
    "s": _f("SELECT_JOBINFO", lambda r: ""),
    "S": _f("START_TIME", lambda r: r.when(r.begin)),
    "t": _f("ST", lambda r: r.job.shown_state.short),
    "T": _f("STATE", lambda r: r.job.shown_state.value),
    "u": _f("USER", lambda r: r.user),
    "U": _f("UID", lambda r: str(r.controller.user.uid)),
    "v": _f("RESERVATION", lambda r: NULL),
    "V": _f("SUBMIT_TIME", lambda r: r.when(r.job.submit_time)),
    "w": _f("WCKEY", lambda r: r.job.desc.shown.get("wckey") or NULL),
    "W": _f("LICENSES", lambda r: r.job.desc.licenses or NULL),
    "x": _f("EXC_NODES", lambda r: compress(r.job.desc.exclude)),
    "X": _f("CORE_SPEC", lambda r: "N/A"),
    "y": _f("NICE", lambda r: str(r.job.desc.nice)),
    "Y": _f("SCHEDNODES", lambda r: compress(r.job.planned_nodes) or NULL),
    "z": _f("S:C:T", lambda r: "*:*:*"),
    "Z": _f("WORK_DIR", lambda r: r.job.desc.folder),
}


def _gpus(row: SqueueJob, count: int | str | None) -> str:
    return f"{row.gpu_prefix}{count}" if count else NONE


def het_ids(job: JobRecord) -> str:
    return f"{job.het.leader}-{job.het.leader + job.het.size - 1}" if job.het else NONE


def min_cpus(job: JobRecord) -> int:
    """Returns the minimum number of CPUs on each node of the job."""
    return (job.desc.tasks_per_node or 1) * (job.desc.cpus_per_task or 1)


def over_subscribe(job: JobRecord, release: Release) -> str:
    plain, shared, exclusive = release.oversubscribe_words
    if job.desc.exclusive:
        return exclusive
    return shared if job.desc.shown.get("oversubscribe") == "yes" else plain


# Long names (for -O) of fields that also have a letter (for -o).
SAME = dict(
    word.split("=")
    for word in """
    account=a arrayjobid=F arraytaskid=K comment=k command=o contiguous=O cores=I dependency=E endtime=e feature=f
    groupid=G groupname=g jobarrayid=i jobid=A licenses=W mincpus=c minmemory=m mintmpdisk=d name=j nice=y
    nodelist=N numcpus=C numnodes=D oversubscribe=h partition=P priority=p prioritylong=Q qos=q reason=r
    reasonlist=R reqnodes=n reservation=v schednodes=Y sct=z starttime=S state=T statecompact=t submittime=V
    timeleft=L timelimit=l timeused=M userid=U username=u wckey=w workdir=Z batchhost=B
    """.split()
)
NAMES: dict[str, PrintField[SqueueJob]] = {name: LETTERS[letter] for name, letter in SAME.items()} | {
    "selectjobinfo": PrintField("", lambda r: ""),
    "cpuspertask": _f("CPUS_PER_TASK", lambda r: str(r.job.desc.cpus_per_task or 1)),
    "eligibletime": _f("ELIGIBLE_TIME", lambda r: r.when(r.job.eligible_time)),
    "excnodes": _f("EXC_NODES", lambda r: compress(r.job.desc.exclude)),
    "exitcode": _f("EXIT_CODE", lambda r: r.exit_code),
    "hetjobid": _f("HET_JOB_ID", lambda r: str(r.job.het.leader) if r.job.het else NONE),
    "hetjoboffset": _f("HET_JOB_OFFSET", lambda r: str(r.job.het.offset) if r.job.het else NONE),
    "hetjobidset": _f("HET_JOB_ID_SET", lambda r: het_ids(r.job)),
    "maxcpus": _f("MAX_CPUS", lambda r: str(r.cpus)),
    "maxnodes": _f("MAX_NODES", lambda r: str(r.number_of_nodes)),
    "ntpernode": _f("NTASKS_PER_NODE", lambda r: str(r.job.desc.tasks_per_node or 0)),
    "numtasks": _f("TASKS", lambda r: str(r.job.desc.tasks or r.number_of_nodes)),
    "preempttime": _f("PREEMPT_TIME", lambda r: r.when(r.job.preempt_time)),
    "requeue": _f("REQUEUE", lambda r: str(int(r.job.desc.requeue))),
    "restartcnt": _f("RESTART_COUNT", lambda r: str(r.job.restarts)),
    "stderr": _f("STDERR", lambda r: r.stderr),
    "stdin": _f("STDIN", lambda r: r.job.desc.input or "/dev/null"),
    "stdout": _f("STDOUT", lambda r: shown_path(r.job, r.job.desc.output, r.user, r.controller.settings.release)),
    "trespernode": _f("TRES_PER_NODE", lambda r: r.gpus),
    "tresperjob": _f("TRES_PER_JOB", lambda r: _gpus(r, r.job.desc.gpus_option)),
    "trespertask": _f("TRES_PER_TASK", lambda r: _gpus(r, r.job.desc.gpus_per_task_option)),
    "tres": _f("TRES_ALLOC", lambda r: r.tres),
    "tresalloc": _f("TRES_ALLOC", lambda r: r.tres),
    "deadline": _f("DEADLINE", lambda r: r.when(r.job.desc.deadline)),
    "pendingtime": _f("PENDING_TIME", lambda r: str(int(r.waited))),
    "prefer": _f("PREFER", lambda r: r.job.desc.prefer or NULL),
    "cpuspertres": _f("CPUS_PER_TRES", lambda r: _gpus(r, r.job.desc.cpus_per_gpu)),
    "mintime": _f("TIME_MIN", lambda r: short_clock(minutes(r.job.desc.shown.get("time-min", "0")) * 60)),
    "network": _f("NETWORK", lambda r: r.job.desc.shown.get("network") or NULL),
    "mcslabel": _f("MCSLABEL", lambda r: r.job.desc.shown.get("mcs-label") or NULL),
    "reboot": _f("REBOOT", lambda r: "1" if "reboot" in r.job.desc.shown else "0"),
    "accruetime": _f("ACCRUE_TIME", lambda r: r.when(r.job.eligible_time)),
    "allocsid": _f("ALLOC_SID", lambda r: str(r.job.desc.alloc_pid)),
    "batchflag": _f("BATCH_FLAG", lambda r: str(int(r.job.desc.batch))),
    "cluster": _f("CLUSTER", lambda r: r.controller.shape.name),
    "derivedec": _f("DERIVED_EC", lambda r: exit_word(r.job.derived)),
    "gres": LETTERS["b"],
    "lastschedeval": _f("LAST_SCHED_EVAL", lambda r: r.when(r.job.last_sched or None)),
    "threads": LETTERS["J"],
}


# Fields that have the same value for all jobs of the fake: NAME=TITLE=VALUE.
SAME_FOR_ALL = """
    admincomment=ADMIN_COMMENT=(null) allocnodes=ALLOC_NODES=localhost associd=ASSOC_ID=2
    boardspernode=BOARDS_PER_NODE=0 burstbuffer=BURST_BUFFER=(null) burstbufferstate=BURST_BUFFER_STATE=(null)
    clusterfeature=CLUSTER_FEATURES=(null) container=CONTAINER=(null) containerid=CONTAINERID=(null)
    origin=ORIGIN=NA profile=PROFILE=NotSet sperboard=SOCKETS_PER_BOARD=0 systemcomment=SYSTEM_COMMENT=(null)
    delayboot=DELAY_BOOT=0:00 mempertres=MEM_PER_TRES=N/A ntperboard=NTASKS_PER_BOARD=0
    ntpercore=NTASKS_PER_CORE=N/A ntpersocket=NTASKS_PER_SOCKET=N/A reqswitch=REQ_SWITCH=0
    resizetime=RESIZE_TIME=N/A tresbind=TRES_BIND=N/A tresfreq=TRES_FREQ=N/A trespersocket=TRES_PER_SOCKET=N/A
    wait4switch=WAIT4SWITCH=0:00
"""
NAMES |= {
    name: PrintField(title, lambda r, value=value: value)  # type: ignore[misc]
    for name, title, value in (word.split("=") for word in SAME_FOR_ALL.split())
}
DASHED = """
    admin_comment cpus-per-task cpus-per-tres exit_code mem-per-tres system_comment tres-alloc tres-bind tres-freq
    tres-per-job tres-per-node tres-per-socket tres-per-task
"""


def names_in(release: Release) -> dict[str, PrintField[SqueueJob]]:
    """Returns the names of squeue's fields (for -O) in a release."""
    later = set(Release.squeue_fields_added.ever().split()) - set(release.squeue_fields_added.split())
    missing = later | set(release.squeue_fields_gone.split())
    return {name: field for name, field in NAMES.items() if name not in missing}


@dataclass(frozen=True)
class SqueueStep:
    job: JobRecord
    step: Step
    controller: Controller

    @property
    def name(self) -> str:
        return f"{self.job.id if self.job.het else self.job.name_of_id}.{self.step.id}"


def _s(title: str, value: object) -> PrintField[SqueueStep]:
    return PrintField(title, value)  # type: ignore[arg-type]


STEP_LETTERS: dict[str, PrintField[SqueueStep]] = {
    "A": _s("TASKS", lambda r: str(r.step.tasks)),
    "b": _s("TRES_PER_NODE", lambda r: r.step.tres_per_node or NULL),
    "i": _s("STEPID", lambda r: r.name),
    "j": _s("NAME", lambda r: r.step.name),
    "l": _s("TIME_LIMIT", lambda r: limit_clock(r.step.minutes)),
    "M": _s("TIME", lambda r: short_clock(r.controller.clock() - r.step.start)),
    "N": _s("NODELIST", lambda r: compress(r.step.nodes)),
    "P": _s("PARTITION", lambda r: r.job.desc.partition),
    "S": _s("START_TIME", lambda r: stamp(r.step.start)),
    "u": _s("USER", lambda r: r.controller.user.name),
    "U": _s("UID", lambda r: str(r.controller.user.uid)),
}
