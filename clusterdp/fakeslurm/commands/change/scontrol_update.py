"""scontrol update: changes nodes, partitions and jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core import constraints, error_texts, times
from ...core.error_texts import ControllerError, Refusal
from ...core.hostlist import HostlistError, expand
from ...core.job_ids import SelectedStep, find, parse
from ...core.model import WAITING, JobRecord
from ...core.node_counts import NodeCounts
from ...slurmctld import dependencies, nodes, requeue

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon


NODE_STATES = "NoResp DRAIN FAIL FUTURE RESUME POWER_DOWN POWER_UP UNDRAIN"
BAD_STATE = """Invalid input: {}
Request aborted
Valid states are: {}
Not all states are valid given a node's prior state"""
READ = {"DOWN", "DRAIN", "FAIL", "RESUME", "UNDRAIN", "IDLE", "FUTURE", "POWER_DOWN", "POWER_UP", "NORESP"}


def update(client: Connection, daemon: Daemon, words: list[str]) -> int:
    words = list(words)
    for place, word in enumerate(words[:-1]):  # two words `job 12` are the same as job=12
        if word.lower() in ("job", "jobid", "jobname", "name") and "=" not in words[place + 1]:
            words[place : place + 2] = [f"{word}={words[place + 1]}"]
            break
    fields = [_field(word) for word in words]
    names = {name for name, _, _ in fields}
    for name, _, word in fields:
        if "=" not in word and name in ("node", "nodename", "partition"):
            raise Refusal(f"scontrol: error: Invalid input: {word}  Request aborted")
        if "=" not in word and name in ("job", "jobid", "jobname", "name"):
            raise Refusal(f"Invalid input: {word}\nRequest aborted")
    relative = [place for place, field in enumerate(fields) if field[0] == "timelimit" and field[1][:1] in ("+", "-")]
    if relative and not {name for name, _, _ in fields[: relative[0]]} & {"jobid", "job"}:
        raise Refusal("scontrol: error: JobId must precede TimeLimit increment or decrement")
    if names & {"jobid", "job"} or (fields and fields[0][0] in ("jobname", "name")):
        return update_jobs(client, daemon, fields)
    if "nodename" in names:
        _update_nodes(daemon, fields)
        return 0
    if "partitionname" in names:
        _update_partition(daemon, fields)
        return 0
    entities = '"NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"'
    raise Refusal(f"No valid entity in update command\nInput line must include {entities}")


def _field(word: str) -> tuple[str, str, str]:
    """Returns the name, the value and the word itself. `TimeLimit+=5` is the same as `TimeLimit=+5`."""
    name, _, value = word.partition("=")
    if name.lower() in ("timelimit+", "timelimit-"):
        if value[:1] in ("+", "-"):
            raise Refusal("scontrol: error: Invalid syntax, variations of +=- are not accepted.")
        name, value = name[:-1], name[-1] + value
    return name.lower(), value, word


def _update_nodes(daemon: Daemon, fields: list[tuple[str, str, str]]) -> None:
    values = {name: value for name, value, _ in fields}
    for name, _, word in fields:
        if name not in ("nodename", "state", "reason", "availablefeatures", "activefeatures"):
            raise unsupported(word)
    try:
        names = expand(values["nodename"])
    except HostlistError:
        names = [values["nodename"]]
    for name in names:
        if name not in daemon.model.nodes:
            raise Refusal(f"slurm_update error: {error_texts.INVALID_NODE}")
    for name in names if "availablefeatures" in values else []:
        daemon.model.nodes[name].features = [word for word in values["availablefeatures"].split(",") if word]
        daemon.controller.records.node(name)
    state, reason = values.get("state", "").upper(), values.get("reason", "")
    if state and state not in READ:
        raise Refusal(BAD_STATE.format(next(word for name, _, word in fields if name == "state"), NODE_STATES))
    if state in ("DOWN", "DRAIN", "FAIL") and not reason:
        raise Refusal("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    refused = None
    for name in names:  # a refusal for one node changes the others
        try:
            nodes.set_node(daemon.controller, name, state, reason)
        except ControllerError as error:
            refused = error
    if refused:
        raise Refusal(f"slurm_update error: {refused}")


def _update_partition(daemon: Daemon, fields: list[tuple[str, str, str]]) -> None:
    values = {name: value for name, value, _ in fields}
    name = values.pop("partitionname")
    if name not in daemon.model.partitions:
        raise Refusal(f"slurm_update error: {error_texts.INVALID_PARTITION}")
    part = daemon.model.partitions[name]
    for field, value, word in fields:
        if field == "gracetime":
            part.grace_s = times.seconds(value) if ":" in value else float(value)
        elif field == "state":
            part.up = value.upper() == "UP"
        elif field == "preemptmode" and value.upper() in ("OFF", "REQUEUE"):
            part.preempt = value.upper()
        elif field == "prioritytier":
            part.tier = int(value)
        elif field == "maxtime":
            part.max_minutes = times.minutes(value) or None
        elif field != "partitionname":
            raise unsupported(word)
    daemon.controller.records.partition(name)
    daemon.controller.wake()


Change = Callable[["Daemon", JobRecord, str], None]
ONLY_WHILE_IT_WAITS = frozenset(
    """
    partition numtasks numcpus minmemorynode mincpusnode excnodelist features gres dependency starttime eligibletime
    oversubscribe
    """.split()
)


# Fields of a job that Slurm can change, and this cluster cannot.
SLURMS = frozenset(
    """
    admincomment batchfeatures burstbuffer clusterfeatures clusters contiguous corespec cpuspertask delayboot endtime
    extra licenses mincpusnode minmemorycpu mintmpdisknode nodelist ntaskspercore ntaskspernode ntaskspersocket prefer
    reqcores reqsockets reqthreads reservation reservationname resetaccruetime shared sitefactor stderr stdin switches
    threadspec timemin trespernode userid wckey
    """.split()
)


def unsupported(word: str) -> Refusal:
    if word.partition("=")[0].lower() in SLURMS:
        return Refusal(f"scontrol: error: update of {word} is not supported by this fake cluster")
    return Refusal(f"Update of this parameter is not supported: {word}\nRequest aborted")


def update_jobs(client: Connection, daemon: Daemon, fields: list[tuple[str, str, str]]) -> int:
    ids = ",".join(value for name, value, _ in fields if name in ("jobid", "job"))
    changes = [field for field in fields if field[0] not in ("jobid", "job")]
    if not ids and changes[0][0] in ("jobname", "name"):  # `JobName=` without an id selects all jobs with the name
        name = changes.pop(0)[1]
        ids = ",".join(str(job.id) for job in daemon.model.live_jobs() if job.desc.name == name)
        if not ids:
            raise Refusal(f"scontrol: error: No jobs with name '{name}'")
    if not changes:
        raise Refusal("No changes specified")
    for name, _, word in changes:
        if name not in CHANGES:
            raise unsupported(word)
    code = 0
    for text in ids.split(","):
        wanted = parse(text)
        jobs = find(daemon.model, wanted) if wanted else []
        try:
            if not wanted or not jobs:
                raise ControllerError(error_texts.INVALID_JOB_ID)
            for part in [part for job in jobs for part in parts(daemon, job, wanted)]:
                _change(daemon, part, changes)
        except ControllerError as error:
            if error.said:
                client.error(error.said)
            client.error(f"{error} for job {text}")
            code = 1
    return code


def parts(daemon: Daemon, job: JobRecord, name: SelectedStep) -> list[JobRecord]:
    """Returns [job]. If the id has indexes of a waiting array, returns these elements, each as a job of its own."""
    if name.indexes is None or not job.array or job.array.split:
        return [job]
    found = [daemon.controller.split(job, index) for index in name.indexes if index in job.array.indexes]
    tick_s = daemon.controller.settings.tick_s
    for one in found:  # the scheduler sets the reason at its next run
        one.reason, one.considered_from = "None", daemon.controller.clock() + tick_s
    daemon.controller.runner.later(tick_s, daemon.controller.wake)
    return found


def _change(daemon: Daemon, job: JobRecord, changes: list[tuple[str, str, str]]) -> None:
    if job.over:
        raise ControllerError(error_texts.FINISHED)
    for name, value, word in changes:
        if name == "partition" and value == job.desc.partition:
            continue
        if name in ONLY_WHILE_IT_WAITS and job.state not in WAITING:  # WAITING includes requeued jobs that complete
            fixed = daemon.shape.settings.release.memory_is_fixed if name == "minmemorynode" else None
            raise ControllerError(fixed or error_texts.NOT_PENDING)
        try:
            CHANGES[name](daemon, job, value)
        except ValueError:
            raise Refusal(f"Invalid value in {word}\nRequest aborted") from None
    daemon.controller.changed(job)
    daemon.controller.wake()


def _time_limit(daemon: Daemon, job: JobRecord, value: str) -> None:
    """Source: scontrol_update_job() of src/scontrol/update_job.c."""
    sign = value[:1] if value[:1] in ("+", "-") else ""
    try:
        new = times.minutes(value[len(sign) :])
    except ValueError:
        raise Refusal("scontrol: error: Invalid TimeLimit value") from None
    now = job.minutes or 0
    if sign and not now:
        raise Refusal("scontrol: error: Cannot increment/decrement TimeLimit when set to UNLIMITED.")
    if sign == "-" and new > now:
        raise Refusal(f"scontrol: error: TimeLimit decrement larger than current time limit ({new} > {now})")
    if sign:
        new = max(now + (new if sign == "+" else -new), 1)
    job.desc.minutes = new
    job.minutes = daemon.controller.limit(job.desc)
    job.warned = False


def _start_time(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.begin = times.moment(value, daemon.controller.clock())
    job.eligible_time = job.eligible_time and job.begin


def _deadline(daemon: Daemon, job: JobRecord, value: str) -> None:
    if job.waits:  # Slurm looks at the deadline of a running job no more
        job.desc.deadline = times.moment(value, daemon.controller.clock())


def _nice(daemon: Daemon, job: JobRecord, value: str) -> None:
    """Source: update_job() of src/slurmctld/job_mgr.c (priority/basic). A held job has the priority 0, and goes on."""
    new, old, was_held = int(value or 100), job.desc.nice, job.held
    if new == old:
        return
    priority, job.desc.nice = 0 if was_held else job.priority, new
    if was_held:
        daemon.controller.release(job)
    job.priority = max(priority + old - new, 2)


def _priority(daemon: Daemon, job: JobRecord, value: str) -> None:
    if job.held:
        raise ControllerError("Job is in held state, pending scheduler release")
    job.priority = int(value)


def _throttle(daemon: Daemon, job: JobRecord, value: str) -> None:
    if not job.array and not daemon.shape.settings.release.throttles_plain_jobs:
        text = "scontrol: error: Update of ArrayTaskThrottle is only allowed on ArrayJobId"
        raise ControllerError("Requested operation not supported on this system", text)
    if job.array:
        for element in daemon.model.elements(job.array.id):
            assert element.array
            element.array.throttle = int(value)


def _partition(daemon: Daemon, job: JobRecord, value: str) -> None:
    names = [name for name in value.split(",") if name]
    if not names or not {*names} <= {*daemon.model.partitions}:
        raise ControllerError(error_texts.INVALID_PARTITION)
    job.desc.partition = ",".join(sorted(names, key=lambda name: -daemon.model.partitions[name].tier))
    job.minutes = daemon.controller.limit(job.desc)


def _nodes(daemon: Daemon, job: JobRecord, value: str) -> None:
    """A number also sets NumTasks, if the job has --ntasks-per-node. Therefore a job that runs with more nodes than its
    least can only shrink to its least."""
    release, desc = daemon.shape.settings.release, job.desc
    try:
        asked = NodeCounts.of(value, release.knows_node_lists)
    except ValueError:
        raise Refusal(f'scontrol: error: Invalid numeric value "{value}" for requested node count.', 0) from None
    is_number = asked.least == asked.most
    tasks = asked.least * desc.tasks_per_node if is_number and desc.tasks_per_node else desc.tasks
    if job.waits:
        desc.min_nodes, desc.max_nodes, desc.nodes_asked = asked.least, asked.most, True
        desc.node_counts, desc.tasks = asked.listed, tasks
        return
    if not asked.most:
        raise ControllerError("Node count specification invalid")
    if not is_number or tasks != desc.tasks:
        raise ControllerError(error_texts.NOT_PENDING)
    if asked.most > len(job.shares):
        raise ControllerError("Requested operation not supported on this system")
    if asked.most < len(job.shares):
        desc.min_nodes = asked.most
        requeue.shrink(daemon.controller, job, asked.most)


def _tasks(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.desc.tasks, job.desc.kept_tasks = int(value), 0


def _cpus(daemon: Daemon, job: JobRecord, value: str) -> None:
    if job.desc.cpus_per_task:
        job.desc.tasks = max(int(value) // job.desc.cpus_per_task, 1)
    else:
        job.desc.tasks = int(value)


def _memory(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.desc.mem_per_node, job.desc.mem_per_cpu = int(value) or None, None


def _required(daemon: Daemon, job: JobRecord, value: str) -> None:
    if not job.waits or (value and not set(_hosts(value)) <= set(daemon.model.nodes)):
        raise ControllerError(error_texts.INVALID_NODE)
    job.desc.nodelist = _hosts(value)


def _excluded(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.desc.exclude = _hosts(value)


def _hosts(text: str) -> list[str]:
    try:
        return expand(text) if text else []
    except HostlistError:
        raise ControllerError(error_texts.INVALID_NODE) from None


def _features(daemon: Daemon, job: JobRecord, value: str) -> None:
    if value and not constraints.known(value, [node.features for node in daemon.model.nodes.values()]):
        raise ControllerError(error_texts.INVALID_FEATURE)
    job.desc.features = value or None


def _gres(daemon: Daemon, job: JobRecord, value: str) -> None:
    kind, _, count = value.removeprefix("gres:").removeprefix("gres/").partition(":")
    if value and kind != "gpu":
        raise ControllerError(error_texts.INVALID_GRES)
    job.desc.gpus.gres, job.desc.gpus.per_node = value, int(count or 1) if value else None


def _dependency(daemon: Daemon, job: JobRecord, value: str) -> None:
    if value:
        dependencies.parse(value)
    job.desc.dependency = value or None


def _output(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.desc.output = os.path.join(job.desc.folder, value)


def _nothing(daemon: Daemon, job: JobRecord, value: str) -> None:
    """Accepts the value without effect, because the fake sends no mail."""


def _shared(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.desc.shown["oversubscribe"] = value


def _set(field: str) -> Change:
    def change(daemon: Daemon, job: JobRecord, value: str) -> None:
        setattr(job.desc, field, value)

    return change


def _requeue(daemon: Daemon, job: JobRecord, value: str) -> None:
    job.desc.requeue = value not in ("0", "no")


CHANGES: dict[str, Change] = {
    "timelimit": _time_limit,
    "starttime": _start_time,
    "eligibletime": _start_time,
    "deadline": _deadline,
    "jobname": _set("name"),
    "name": _set("name"),
    "comment": _set("comment"),
    "account": _set("account"),
    "qos": _set("qos"),
    "workdir": _set("folder"),
    "requeue": _requeue,
    "nice": _nice,
    "priority": _priority,
    "arraytaskthrottle": _throttle,
    "partition": _partition,
    "numnodes": _nodes,
    "numtasks": _tasks,
    "numcpus": _cpus,
    "minmemorynode": _memory,
    "reqnodelist": _required,
    "excnodelist": _excluded,
    "features": _features,
    "gres": _gres,
    "dependency": _dependency,
    "stdout": _output,
    "mailuser": _nothing,
    "mailtype": _nothing,
    "oversubscribe": _shared,
}
