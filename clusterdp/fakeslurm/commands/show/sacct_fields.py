"""The fields of sacct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.hostlist import compress
from ...core.release import Release
from ...core.shape import User
from ...core.state import accounted_exit_word, exit_word
from ...core.task_usage import Usage
from ...core.times import clock, cpu_clock, limit_clock, stamp
from ...slurmdbd.accounting import OF_PARTITION, AccountingJob, AccountingStep, size


@dataclass(slots=True)
class SacctLine:
    """A line of sacct: a job or one of its steps."""

    row: AccountingJob
    step: AccountingStep | None
    user: User
    cluster: str
    now: float
    release: Release

    @property
    def state(self) -> str:
        state = self.step.state if self.step else self.row.state
        by = self.step.cancelled_by if self.step else self.row.cancelled_by
        return f"{state} by {by}" if state == "CANCELLED" and by is not None else state

    @property
    def start(self) -> float | None:
        return self.step.start if self.step else self.row.start

    @property
    def start_text(self) -> str:
        never_ran = not self.step and not self.row.nodes and self.row.end is not None
        return (never_ran and self.release.start_of_never_ran) or stamp(self.start)

    @property
    def end(self) -> float | None:
        return self.step.end if self.step else self.row.end

    @property
    def elapsed(self) -> float:
        if self.start is None:
            return 0
        return (self.now if self.end is None else self.end) - self.start

    @property
    def cpus(self) -> int:
        if self.step:
            return self.step.cpus
        if not self.row.nodes and not self.release.sacct_counts_asked_cpus:
            return 0
        return self.row.cpus or self.row.asked_cpus

    @property
    def nodes(self) -> str:
        if self.step:
            return compress(self.step.nodes)
        return compress(self.row.nodes) or "None assigned"

    @property
    def number_of_nodes(self) -> int:
        if self.step:
            return len(self.step.nodes)
        return len(self.row.nodes) or self.row.asked_nodes

    @property
    def alloc_tres(self) -> str:
        if self.step:
            return f"cpu={self.step.cpus},mem=0,node={len(self.step.nodes)}"
        if not self.row.nodes:
            return ""
        return f"billing={self.row.cpus},cpu={self.row.cpus},node={len(self.row.nodes)}"

    @property
    def req_tres(self) -> str:
        row = self.row
        if self.step:
            return ""
        return f"billing={row.asked_cpus},cpu={row.asked_cpus},mem={size(row.asked_mem)},node={row.asked_nodes}"

    @property
    def usages(self) -> list[Usage]:
        """Returns the Usage of a step, or the Usage of each step of a job."""
        steps = (self.step,) if self.step else self.row.steps
        return [step.usage for step in steps if step.usage]

    def measured(self, text: Callable[[Usage], str]) -> str:
        """Returns the value of a field for steps that have ended, and "" for other lines."""
        return text(self.step.usage) if self.step and self.step.usage else ""

    @property
    def waited(self) -> float:
        """Returns the seconds from the time when the job became eligible until it started."""
        start = self.now if self.start is None else self.start
        return 0 if self.row.eligible is None else start - self.row.eligible

    def of_job(self, text: str) -> str:
        """Returns the value of a field that only lines of jobs have, and "" for a step."""
        return "" if self.step else text


@dataclass(frozen=True)
class SacctField:
    value: Callable[[SacctLine], str]
    width: int = 10


def _job(line: SacctLine, number: str) -> str:
    return f"{number}.{line.step.id}" if line.step else number


def _exit_word(line: SacctLine) -> str:
    return (accounted_exit_word if line.release.sacct_cuts_codes else exit_word)(_status(line))


def _status(line: SacctLine) -> int:
    return line.step.status if line.step else line.row.status


def _tres(cpu_s: float, kb: int) -> str:
    return f"cpu={clock(cpu_s)},energy=0,fs/disk=0,mem={kb}K,pages=0,vmem={kb}K"


def _limit(line: SacctLine, text: str) -> str:
    return "Partition_Limit" if line.row.minutes == OF_PARTITION else text


def _empty(line: SacctLine) -> str:
    return ""


FIELDS: dict[str, SacctField] = {
    "Account": SacctField(lambda line: line.row.account),
    "AllocCPUS": SacctField(lambda line: str(line.cpus)),
    "AllocNodes": SacctField(lambda line: str(len(line.step.nodes) if line.step else len(line.row.nodes))),
    "AllocTRES": SacctField(lambda line: line.alloc_tres),
    "AveCPU": SacctField(lambda line: line.measured(lambda used: clock(used.ave_cpu_s))),
    "AveRSS": SacctField(lambda line: line.measured(lambda used: f"{used.ave_rss_kb}K")),
    "Cluster": SacctField(lambda line: line.cluster),
    "Comment": SacctField(_empty, 14),
    "ConsumedEnergy": SacctField(lambda line: "0", 14),
    "CPUTime": SacctField(lambda line: clock(line.elapsed * line.cpus)),
    "CPUTimeRAW": SacctField(lambda line: str(int(line.elapsed) * line.cpus)),
    "DerivedExitCode": SacctField(lambda line: line.of_job(exit_word(line.row.derived)), 15),
    "Elapsed": SacctField(lambda line: clock(line.elapsed)),
    "ElapsedRaw": SacctField(lambda line: str(int(line.elapsed))),
    "Eligible": SacctField(lambda line: line.of_job(stamp(line.row.eligible)), 19),
    "End": SacctField(lambda line: stamp(line.end), 19),
    "ExitCode": SacctField(_exit_word, 8),
    "GID": SacctField(lambda line: line.of_job(str(line.user.gid)), 6),
    "Group": SacctField(lambda line: line.of_job(line.user.group), 9),
    "JobID": SacctField(lambda line: _job(line, line.row.id_text), -12),
    "JobIDRaw": SacctField(lambda line: _job(line, str(line.row.job)), -12),
    "JobName": SacctField(lambda line: line.step.name if line.step else line.row.name),
    "MaxRSS": SacctField(lambda line: line.measured(lambda used: f"{used.max_rss_kb}K")),
    "MaxRSSNode": SacctField(lambda line: line.measured(lambda used: used.max_rss_node)),
    "MaxRSSTask": SacctField(lambda line: line.measured(lambda used: str(used.max_rss_task))),
    "MinCPU": SacctField(lambda line: line.measured(lambda used: clock(used.min_cpu_s))),
    "MinCPUNode": SacctField(lambda line: line.measured(lambda used: used.min_cpu_node)),
    "MinCPUTask": SacctField(lambda line: line.measured(lambda used: str(used.min_cpu_task))),
    "NCPUS": SacctField(lambda line: str(line.cpus)),
    "NNodes": SacctField(lambda line: str(line.number_of_nodes), 8),
    "NodeList": SacctField(lambda line: line.nodes, 15),
    "NTasks": SacctField(lambda line: str(line.step.tasks) if line.step else "", 8),
    "Partition": SacctField(lambda line: line.of_job(line.row.partition)),
    "Planned": SacctField(lambda line: line.of_job("INVALID" if line.waited <= -1 else clock(line.waited))),
    "PlannedCPU": SacctField(lambda line: line.of_job(clock(line.waited * line.cpus))),
    "PlannedCPURAW": SacctField(lambda line: line.of_job(str(int(line.waited) * line.cpus)), 13),
    "Priority": SacctField(lambda line: line.of_job(str(line.row.priority))),
    "QOS": SacctField(lambda line: line.of_job(line.row.qos)),
    "Reason": SacctField(lambda line: line.of_job("None"), 22),
    "ReqCPUS": SacctField(lambda line: str(line.step.cpus if line.step else line.row.asked_cpus), 8),
    "ReqMem": SacctField(lambda line: line.of_job(size(line.row.asked_mem))),
    "ReqNodes": SacctField(lambda line: str(len(line.step.nodes) if line.step else line.row.asked_nodes), 8),
    "ReqTRES": SacctField(lambda line: line.req_tres),
    "Restarts": SacctField(lambda line: line.of_job(str(line.row.restarts)), 8),
    "Start": SacctField(lambda line: line.start_text, 19),
    "State": SacctField(lambda line: line.state),
    "StdErr": SacctField(lambda line: line.of_job(line.row.stderr), 20),
    "StdIn": SacctField(lambda line: line.of_job("/dev/null" if line.row.stdout else ""), 20),
    "StdOut": SacctField(lambda line: line.of_job(line.row.stdout), 20),
    "Submit": SacctField(lambda line: stamp(line.step.start if line.step else line.row.submit), 19),
    "SubmitLine": SacctField(lambda line: (line.step or line.row).submit_line, 20),
    "Suspended": SacctField(lambda line: "00:00:00"),
    "SystemCPU": SacctField(lambda line: cpu_clock(sum(used.system_s for used in line.usages))),
    "Timelimit": SacctField(lambda line: line.of_job(_limit(line, limit_clock(line.row.minutes)))),
    "TimelimitRaw": SacctField(lambda line: line.of_job(_limit(line, str(line.row.minutes or "UNLIMITED")))),
    "TotalCPU": SacctField(lambda line: cpu_clock(sum(used.cpu_s for used in line.usages))),
    "UID": SacctField(lambda line: line.of_job(str(line.user.uid)), 6),
    "User": SacctField(lambda line: line.of_job(line.user.name), 9),
    "UserCPU": SacctField(lambda line: cpu_clock(sum(used.user_s for used in line.usages))),
    "WorkDir": SacctField(lambda line: line.of_job(line.row.folder), 20),
}
for _name, _of in {  # the kernel reports no virtual memory and no files: memory stands for them
    "Ave": lambda used: (used.ave_cpu_s, used.ave_rss_kb),
    "Max": lambda used: (used.ave_cpu_s, used.max_rss_kb),
    "Min": lambda used: (used.min_cpu_s, used.ave_rss_kb),
    "Tot": lambda used: (used.cpu_s, used.max_rss_kb),
}.items():
    FIELDS[f"TRESUsageIn{_name}"] = SacctField(lambda line, of=_of: line.measured(lambda used: _tres(*of(used))), 14)  # type: ignore[misc]
FIELDS |= {f"{_name}VMSize": FIELDS[f"{_name}RSS"] for _name in ("Ave", "Max")}
FIELDS |= {f"MaxVMSize{_name}": FIELDS[f"MaxRSS{_name}"] for _name in ("Node", "Task")}
# Fields that are empty in the fake, as on a site that does not measure these values.
UNMEASURED = tuple(
    """
    AdminComment AssocID AveCPUFreq AveDiskRead AveDiskWrite AvePages AveVMSize BlockID Constraints
    ConsumedEnergyRaw Container DBIndex Flags Layout MaxDiskRead MaxDiskReadNode MaxDiskReadTask
    MaxDiskWrite MaxDiskWriteNode MaxDiskWriteTask MaxPages MaxPagesNode MaxPagesTask
    MaxVMSize MaxVMSizeNode MaxVMSizeTask McsLabel QOSRAW ReqCPUFreq ReqCPUFreqGov
    ReqCPUFreqMax ReqCPUFreqMin Reservation ReservationId Reserved ResvCPU ResvCPURAW SystemComment TRESUsageInAve
    TRESUsageInMax TRESUsageInMaxNode TRESUsageInMaxTask TRESUsageInMin TRESUsageInMinNode TRESUsageInMinTask
    TRESUsageInTot TRESUsageOutAve TRESUsageOutMax TRESUsageOutMaxNode TRESUsageOutMaxTask TRESUsageOutMin
    TRESUsageOutMinNode TRESUsageOutMinTask TRESUsageOutTot WCKey WCKeyID
    Exclusive Extra FailedNode Licenses OriginalSLUID OverSubscribe QOSREQ ReqReservation SegmentSize SLUID StdErr
    StdIn StdOut
    """.split()
)
FIELDS |= {name: SacctField(_empty) for name in UNMEASURED if name not in FIELDS}


def names_in(release: Release) -> list[str]:
    """Returns the names of sacct's fields in a release."""
    later = set(Release.sacct_fields_added.ever().split()) - set(release.sacct_fields_added.split())
    return sorted(FIELDS.keys() - later - set(release.sacct_fields_gone.split()), key=_place)


def _place(name: str) -> str:
    """Returns the sort key of a field: its name, except for one field that sacct sorts by an older name."""
    return name.replace("ReqReservation", "ReservationReq").lower()


# sacct --long
LONG = """
JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,
MaxPages,MaxPagesNode,MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AllocCPUS,Elapsed,State,ExitCode,
AveCPUFreq,ReqCPUFreqMin,ReqCPUFreqMax,ReqCPUFreqGov,ReqMem,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,MaxDiskReadTask,
AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,ReqTRES,AllocTRES,TRESUsageInAve,TRESUsageInMax,
TRESUsageInMaxNode,TRESUsageInMaxTask,TRESUsageInMin,TRESUsageInMinNode,TRESUsageInMinTask,TRESUsageInTot,
TRESUsageOutMax,TRESUsageOutMaxNode,TRESUsageOutMaxTask,TRESUsageOutAve,TRESUsageOutTot
""".replace("\n", "")
