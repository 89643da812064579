"""scontrol show: prints jobs, steps, nodes, partitions, settings and associations."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.hostlist import HostlistError, compress, expand
from ...core.job_desc import JobDesc
from ...core.job_environ import tres_per_task
from ...core.job_ids import parse
from ...core.model import BATCH, JobRecord, Node, Step, sluid
from ...core.ranges import index_text, ranges
from ...core.release import Release
from ...core.shape import User, host_name
from ...core.state import exit_word
from ...core.times import clock, limit_clock, minutes, stamp
from ...slurmctld.dependencies import dependency_state
from ...slurmctld.step_layout import StepRequest
from ...slurmctld.step_plans import shown_path
from ...slurmdbd.accounting import size
from .sinfo_fields import allocated, state_words
from .squeue_fields import SqueueJob, het_ids, min_cpus, over_subscribe, tres_per_node

if TYPE_CHECKING:
    from ...slurmctld.daemon import Daemon


class NotFound(Exception):
    """A refusal that is printed on stdout, unlike other refusals."""


def _user(user: User) -> str:
    return f"UserId={user.name}({user.uid}) GroupId={user.group}({user.gid})"


def job(daemon: Daemon, job: JobRecord, details: bool) -> str:
    controller, desc = daemon.controller, job.desc
    row = SqueueJob(job, controller, "")
    reason, end = job.reason.replace(" ", "_"), None if row.has_unknown_end else row.end
    dependency = dependency_state(controller.model, job, controller.clock()).text or "(null)"
    head = f"JobId={job.id}"
    if job.array:
        index = str(job.array.indexes[0]) if job.array.split else index_text(job.array.indexes, job.array.throttle)
        throttle = f" ArrayTaskThrottle={job.array.throttle}" if job.array.throttle else ""
        head += f" ArrayJobId={job.array.id} ArrayTaskId={index}{throttle}"
    if job.het:
        head += f" HetJobId={job.het.leader} HetJobOffset={job.het.offset}"
    lines = [f"{head} JobName={desc.name}", *([f"HetJobIdSet={het_ids(job)}"] if job.het else [])]
    if details and controller.settings.release.has_sluid:
        lines.append(f"SLUID={sluid(job)}")
    lines += [
        f"{_user(controller.user)} MCS_label=N/A",
        f"Priority={0 if job.held else job.priority} Nice={desc.nice} Account={desc.account} QOS={desc.qos}",
        f"JobState={job.shown_state.value} Reason={reason} Dependency={dependency}",
        (
            f"Requeue={int(desc.requeue)} Restarts={job.restarts} BatchFlag={job.batch_flag * desc.batch} Reboot=0 "
            f"ExitCode={exit_word(job.status)}"
        ),
    ]
    if details:
        lines.append(f"DerivedExitCode={exit_word(job.derived)}")
    lines += [
        f"RunTime={clock(row.elapsed)} TimeLimit={limit_clock(job.minutes)} TimeMin={_time_min(desc)}",
        f"SubmitTime={stamp(job.submit_time)} EligibleTime={stamp(job.eligible_time)}",
        f"AccrueTime={stamp(job.eligible_time)}",
        f"StartTime={stamp(row.begin)} EndTime={stamp(end)} Deadline={stamp(desc.deadline, 'N/A')}",
    ]
    if job.preempt_time is not None:
        lines.append(f"PreemptEligibleTime={stamp(job.start)} PreemptTime={stamp(job.preempt_time)}")
    lines += [
        f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={stamp(job.last_sched)} Scheduler=Main",
        f"Partition={desc.partition} AllocNode:Sid={desc.host}:{desc.alloc_pid}",
        f"ReqNodeList={compress(desc.nodelist) or '(null)'} ExcNodeList={compress(desc.exclude) or '(null)'}",
        f"NodeList={row.nodes}",
    ]
    if job.batch_host:
        lines.append(f"BatchHost={job.batch_host}")
    lines += _size(job, row, details)
    lines += _place(row)
    return "\n   ".join(lines) + controller.settings.release.after_job


def _size(job: JobRecord, row: SqueueJob, details: bool) -> list[str]:
    desc = job.desc
    nodes, cpus, release = row.number_of_nodes, row.cpus, row.controller.settings.release
    never_ran = job.over and not job.past
    numbers = (ranges(desc.node_counts) if job.waits else "") or _node_counts(job, nodes, release)
    least = max(desc.tasks, desc.kept_tasks) if desc.tasks is not None else max(nodes, desc.min_nodes)
    of_nodes = (
        (desc.min_nodes if job.waits else nodes) * (desc.tasks_per_node or 0)
        if desc.tasks is None or release.tasks_fill_nodes
        else 0
    )
    tasks = "N/A" if never_ran and desc.tasks is None else max(least, of_nodes)
    tres = {"TRES": row.tres, "ReqTRES": row.asked_tres, "AllocTRES": row.tres if job.held_shares else "(null)"}
    each, threads = desc.cpus_per_task or 1, "1" if desc.hint == "nomultithread" else "*"
    lines = [
        (f"NumNodes={numbers} NumCPUs={cpus} NumTasks={tasks} CPUs/Task={each} ReqB:S:C:T=0:0:*:{threads}"),
        *(f"{name}={tres[name]}" for name in release.tres_lines),
        f"Socks/Node=* NtasksPerN:B:S:C={desc.tasks_per_node or 0}:0:*:* CoreSpec=*",
    ]
    if details and job.held_shares:
        total = sum(len(share.gpus) for share in job.held_shares)
        if total:
            lines.append(f"JOB_GRES=gpu:{total}")
        lines += ["  " + line for line in _shares(job)]
    memory = f"MinMemoryCPU={row.memory}" if desc.mem_per_cpu is not None else f"MinMemoryNode={row.memory}"
    return [*lines, f"MinCPUsNode={min_cpus(job)} {memory} MinTmpDiskNode=0"]


def _node_counts(job: JobRecord, nodes: int, release: Release) -> str:
    """Returns the number of nodes, for a waiting job with the maximum number of nodes that the job may get."""
    desc = job.desc
    if not job.waits or not (release.most_nodes_shown or (desc.nodes_asked and not job.last_size)):
        return str(nodes)
    asked = desc.max_nodes or (desc.tasks if release.most_nodes_shown == "tasks" else 0) or 0
    looked_at = not job.held and job.reason not in ("Dependency", "BeginTime")
    never_tried = not looked_at and not desc.tasks_per_node and (desc.cpus_per_task or 1) == 1
    most = max(nodes, asked) if never_tried else asked
    if not most or (most == nodes and not looked_at and not release.most_nodes_shown):
        return str(nodes)
    return f"{min(nodes, most)}-{most}"


def _time_min(desc: JobDesc) -> str:
    text = desc.shown.get("time-min")
    return limit_clock(minutes(text)) if text else "N/A"


def _shares(job: JobRecord) -> list[str]:
    """Returns the lines about the job's CPUs and GPUs on each node. Nodes with equal CPUs and GPUs share a line."""
    groups: dict[str, list[str]] = {}
    for share in job.held_shares:
        gres = f"gpu:{len(share.gpus)}(IDX:{ranges(share.gpus)})" if share.gpus and job.shares else ""
        groups.setdefault(f"CPU_IDs={ranges(share.cpu_ids)} Mem=0 GRES={gres}", []).append(share.node)
    return [f"Nodes={compress(nodes)} {what}" for what, nodes in groups.items()]


def _place(row: SqueueJob) -> list[str]:
    job, desc, user, release = row.job, row.job.desc, row.controller.user, row.controller.settings.release
    arguments = desc.arguments if release.command_has_arguments else []
    lines = [
        f"Features={desc.features or '(null)'} DelayBoot=00:00:00",
        release.sharing.format(
            over_subscribe(job, release),
            "NODE" if desc.exclusive else "NO",
            desc.licenses or "(null)",
            (desc.licenses or "").split("|")[0] if job.shares and desc.licenses else "(null)",
        ),
        f"Command={' '.join([desc.command or '(null)', *arguments])}",
        *([f"SubmitLine={desc.submit_line}"] if release.has_submit_line else []),
        f"WorkDir={desc.folder}",
    ]
    if desc.comment:
        lines.append(f"Comment={desc.comment}{release.after_comment}")
    if desc.batch:
        lines += [
            f"StdErr={row.error_path(release.stderr_in_scontrol)}",
            f"StdIn={desc.input or '/dev/null'}",
            f"StdOut={shown_path(job, desc.output, user.name, release)}",
        ]
    lines += release.power_line
    gpu = release.gpu_prefix
    of_tasks = tres_of_tasks(job, release)
    asked = {
        "MemPerTres": f"{gpu}{desc.mem_per_gpu}" if desc.mem_per_gpu is not None else "",
        "TresBind": of_tasks.get("SLURM_TRES_BIND"),
        "TresPerJob": f"{gpu}{desc.gpus_option}" if desc.gpus_option else "",
        "TresPerNode": tres_per_node(job, gpu),
        "TresPerTask": of_tasks.get("SLURM_TRES_PER_TASK"),
    }
    return lines + [f"{name}={value}" for name, value in asked.items() if value]


def tres_of_tasks(job: JobRecord, release: Release) -> dict[str, str]:
    """Returns the values of TresPerTask and TresBind, by the names of the variables that have the same values."""
    if release.tres_per_task:
        return tres_per_task(job, release.gpu_in_bind)
    option = job.desc.gpus_per_task_option
    return {"SLURM_TRES_PER_TASK": f"{release.gpu_prefix}{option}"} if option else {}


def steps(daemon: Daemon, argument: str) -> list[str]:
    name = parse(argument) if argument else None
    finds_batch = daemon.shape.settings.release.finds_batch_step
    if name and name.step and not name.step.isdigit() and not (finds_batch and name.step == BATCH):
        name = replace(name, step="0")  # Slurm reads the number 0 from any other step id
    found = []
    for each in daemon.model.jobs.values():
        if (name is None and argument) or (name and not name.finds(each)):
            continue
        for step in sorted(each.steps, key=lambda step: (step.id != BATCH, len(step.id), step.id)):
            if step.live and (not name or name.step in (None, step.id)):
                found.append(_step(daemon, each, step))
        if not name or name.step is None:
            found += [_waiting_step(daemon, each, request) for request in daemon.waiting_steps.get(each.id, [])]
    return found


def _step(daemon: Daemon, job: JobRecord, step: Step) -> str:
    user, batch = daemon.controller.user, step.id == BATCH
    cpus = 0 if batch else step.number_of_cpus
    tres = "(null)" if batch else f"cpu={cpus},mem=0,node={len(step.nodes)}"
    lines = [
        (
            f"StepId={job.id if job.het else job.name_of_id}.{step.id} UserId={user.uid} StartTime={stamp(step.start)} "
            f"TimeLimit={limit_clock(step.minutes)}"
        ),
        f"State={step.state.value} Partition={job.desc.partition} NodeList={compress(step.nodes)}",
        f"Nodes={len(step.nodes)} CPUs={cpus} Tasks={step.tasks} Name={step.name} Network=(null)",
        f"TRES={tres}",
        "ResvPorts=(null)",
        "CPUFreqReq=Default" + ("" if batch else f" Dist={step.distribution.capitalize()}"),
    ]
    lines.append("" if batch else f"SrunHost:Pid={host_name()}:{step.host_pid}")
    asked = {"Bind": step.tres_bind, "PerStep": step.cpus_per_step}
    asked |= {"PerNode": step.tres_per_node, "PerTask": step.tres_per_task}
    lines += [f"Tres{name}={value}" for name, value in asked.items() if value]
    return "\n   ".join(lines) + "\n"


def _waiting_step(daemon: Daemon, job: JobRecord, request: StepRequest) -> str:
    """Returns the lines for a step that waits for CPUs. The step has no number: Slurm writes TDB or TBD instead."""
    waiting = daemon.shape.settings.release.waiting_step
    cpus = (request.tasks or 0) * request.cpus_per_task
    lines = [
        f"StepId={job.name_of_id}.{waiting} UserId={daemon.controller.user.uid} StartTime=Unknown TimeLimit=UNLIMITED",
        f"State=PENDING Partition={job.desc.partition} NodeList={compress(job.nodes)}",
        f"Nodes={request.nodes} CPUs={cpus} Tasks={request.tasks} Name=(null) Network=(null)",
    ]
    return "\n   ".join(lines) + "\n"


def _hosts(text: str) -> list[str]:
    try:
        return expand(text)
    except HostlistError:
        return [text]


def nodes(daemon: Daemon, argument: str) -> list[str]:
    names = _hosts(argument) if argument else list(daemon.model.nodes)
    for name in names:
        if name not in daemon.model.nodes:
            raise NotFound(f"Node {name} not found")
    return [_node(daemon, daemon.model.nodes[name]) for name in names]


def _node(daemon: Daemon, node: Node) -> str:
    model, release = daemon.model, daemon.shape.settings.release
    cpus = allocated(model, node.name)
    gres = node.gres_of(node.gpus) or "(null)"
    features = ",".join(node.features) or "(null)"
    partitions = ",".join(part.name for part in model.partitions.values() if node.name in part.nodes)
    lines = [
        f"NodeName={node.name} Arch={platform.machine()} CoresPerSocket=1 ",
        f"CPUAlloc={cpus} CPUEfctv={node.cpus} CPUTot={node.cpus} CPULoad=0.00",
        f"AvailableFeatures={features}",
        f"ActiveFeatures={features}",
        f"Gres={gres}",
        f"NodeAddr=127.0.0.1 NodeHostName={host_name()} Port=0 Version={daemon.shape.settings.slurm_version}",
        f"OS={platform.system()} {platform.release()} ",
        f"RealMemory={node.memory_mb} AllocMem=0 FreeMem=N/A Sockets={node.cpus} Boards=1",
        f"State={state_words(model, node)} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"Partitions={partitions} ",
        f"BootTime={stamp(node.boot_time)} SlurmdStartTime={stamp(node.boot_time)}",
        f"LastBusyTime={stamp(node.busy_time)}{release.resume_after}",
        f"CfgTRES=cpu={node.cpus},mem={node.memory_mb}M,billing={node.cpus}",
        f"AllocTRES={f'cpu={cpus}' if cpus else ''}",
        *release.power_of_node,
    ]
    if node.reason:
        lines.append(f"Reason={node.reason} [{daemon.controller.user.name}@{stamp(node.reason_time)}]")
    return "\n   ".join(lines) + "\n"


def partitions(daemon: Daemon, argument: str) -> list[str]:
    model = daemon.model
    if argument and argument not in model.partitions:
        raise NotFound(f"Partition {argument} not found")
    return [_partition(daemon, name) for name in ([argument] if argument else model.partitions)]


def _partition(daemon: Daemon, name: str) -> str:
    part, release = daemon.model.partitions[name], daemon.shape.settings.release
    limit = f"MaxTime={limit_clock(part.max_minutes)}"
    cpus = sum(daemon.model.nodes[node].cpus for node in part.nodes)
    memory = sum(daemon.model.nodes[node].memory_mb for node in part.nodes)
    tres = f"cpu={cpus},mem={size(memory)},node={len(part.nodes)},billing={cpus}"
    return "\n   ".join([
        f"PartitionName={name}",
        "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
        f"AllocNodes=ALL Default={'YES' if part.default else 'NO'} QoS=N/A",
        f"DefaultTime=NONE DisableRootJobs=NO {release.exclusive_of_partition} GraceTime={part.grace_s:g} Hidden=NO",
        f"MaxNodes=UNLIMITED {limit} MinNodes=0 LLN=NO {release.most_cpus_of_partition}",
        *release.node_sets_line,
        f"Nodes={compress(part.nodes) or '(null)'}",
        f"PriorityJobFactor=1 PriorityTier={part.tier} RootOnly=NO ReqResv=NO OverSubscribe=NO",
        f"OverTimeLimit=NONE PreemptMode={part.preempt}",
        f"State={'UP' if part.up else 'DOWN'} TotalCPUs={cpus} TotalNodes={len(part.nodes)} SelectTypeParameters=NONE",
        "JobDefaults=(null)",
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"TRES={tres}",
    ]) + "\n"  # fmt: skip


def config(daemon: Daemon) -> str:
    settings, user = daemon.shape.settings, daemon.controller.user
    rows = CONFIG | {
        "ClusterName": daemon.shape.name,
        "KillWait": f"{settings.kill_wait_s:g} sec",
        "MaxArraySize": str(settings.max_array),
        "MinJobAge": f"{settings.min_job_age_s:g} sec",
        "SLURM_CONF": str(daemon.paths.conf),
        "AuthInfo": f"cred_expire={max(1, round(settings.requeue_delay_s))}",  # delay of requeued jobs
        "SLURM_VERSION": settings.slurm_version,
        "SlurmUser": f"{user.name}({user.uid})",
        "SlurmdPidFile": str(daemon.paths.pid),
        "SlurmctldHost[0]": f"{host_name()}(127.0.0.1)",
    }
    if settings.release.has_preempt_parameters:
        rows["PreemptParameters"] = "(null)"
    lines = [f"Configuration data as of {stamp(daemon.controller.clock())}"]
    lines += [f"{name:<23} = {rows[name]}" for name in sorted(rows, key=str.lower)]
    return "\n".join([*lines, "", f"Slurmctld(primary) at {host_name()} is UP"])


CONFIG = {
    "AccountingStorageBackupHost": "(null)",
    "AccountingStorageEnforce": "none",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "BatchStartTimeout": "10 sec",
    "CompleteWait": "0 sec",
    "DefMemPerNode": "UNLIMITED",
    "EnforcePartLimits": "NO",
    "EpilogMsgTime": "2000 usec",
    "GresTypes": "gpu",
    "InactiveLimit": "0 sec",
    "JobFileAppend": "0",
    "JobRequeue": "1",
    "KillOnBadExit": "0",
    "LaunchParameters": "(null)",
    "MaxJobCount": "10000",
    "MaxStepCount": "40000",
    "MessageTimeout": "10 sec",
    "OverTimeLimit": "0 min",
    "PreemptMode": "REQUEUE",
    "PreemptType": "preempt/partition_prio",
    "PriorityType": "priority/basic",
    "PropagateResourceLimits": "ALL",
    "ResumeTimeout": "60 sec",
    "ReturnToService": "2",
    "SchedulerType": "sched/backfill",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE",
    "SlurmdTimeout": "15 sec",
    "TmpFS": "/tmp",
    "UnkillableStepTimeout": "60 sec",
    "WaitTime": "0 sec",
}


NOTHING = ",".join(f"{name}=N(0)" for name in "cpu mem energy node billing fs/disk vmem pages".split())
LIMITS = f"""    SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00
    UsageRaw/Norm/Efctv=0.00/1.00/0.00
    ParentAccount= Lft={{left}} DefAssoc={{default}}
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES={NOTHING}
    GrpTRESMins={NOTHING}
    GrpTRESRunMins={NOTHING}
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=
    MaxTRESPN=
    MaxTRESMinsPJ=
    MinPrioThresh="""


def associations(daemon: Daemon) -> str:
    user, cluster = daemon.controller.user, daemon.shape.name
    whole = f"ClusterName={cluster} Account={user.name} UserName="
    return f"""Current Association Manager state

User Records

UserName={user.name}({user.uid}) DefAccount={user.name} DefWckey= AdminLevel=Administrator

Association Records

{whole} Partition= Priority=0 ID=1
{LIMITS.format(left=1, default="No")}
{whole}{user.name}({user.uid}) Partition= Priority=0 ID=2
{LIMITS.format(left=2, default="Yes")}

QOS Records

QOS=normal(1)"""
