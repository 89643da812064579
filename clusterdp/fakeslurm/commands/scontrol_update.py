"""scontrol update: jobs, nodes, partitions."""

from typing import TYPE_CHECKING

from clusterdp.fakeslurm import nodes, refusals, times
from clusterdp.fakeslurm.ids import find, parse
from clusterdp.fakeslurm.model import Job
from clusterdp.fakeslurm.refusals import ControllerError, Refusal
from clusterdp.slurm.hostlist import HostlistError, expand

if TYPE_CHECKING:
    from clusterdp.fakeslurm.conversation import Conversation
    from clusterdp.fakeslurm.daemon import Daemon

NOT_A_RUNNING_JOBS = (
    "partition",
    "numtasks",
    "numnodes",
    "excnodelist",
    "features",
    "gres",
    "dependency",
    "starttime",
    "eligibletime",
)


def update(talk: "Conversation", daemon: "Daemon", words: list[str]) -> int:
    fields = [(word.partition("=")[0].lower(), word.partition("=")[2], word) for word in words]
    names = {name for name, _, _ in fields}
    if "jobid" in names or "job" in names:
        return _jobs(talk, daemon, fields)
    if "nodename" in names:
        _nodes(daemon, fields)
        return 0
    if "partitionname" in names:
        _partition(daemon, fields)
        return 0
    raise Refusal(
        'No valid entity in update command\nInput line must include "NodeName", "PartitionName", "JobId" or "Job"'
    )


def _unsupported(word: str) -> Refusal:
    return Refusal(f"Update of this parameter is not supported: {word}\nRequest aborted")


def _jobs(talk: "Conversation", daemon: "Daemon", fields: list[tuple[str, str, str]]) -> int:
    ids = ",".join(value for name, value, _ in fields if name in ("jobid", "job"))
    changes = [field for field in fields if field[0] not in ("jobid", "job")]
    for name, _, word in changes:
        if name not in CHANGES:
            raise _unsupported(word)
    code = 0
    for text in ids.split(","):
        wanted = parse(text)
        jobs = find(daemon.model, wanted) if wanted else []
        try:
            if not wanted or not jobs:
                raise ControllerError(refusals.INVALID_JOB_ID)
            for job in jobs:
                if wanted.indexes is not None and job.array and not job.array.split:
                    parts = [daemon.controller.split(job, i) for i in wanted.indexes if i in job.array.indexes]
                else:
                    parts = [job]
                for part in parts:
                    _change(daemon, part, changes)
        except ControllerError as error:
            talk.error(f"{error} for job {text}")
            code = 1
    return code


def _change(daemon: "Daemon", job: Job, changes: list[tuple[str, str, str]]) -> None:
    if job.over:
        raise ControllerError(refusals.FINISHED)
    for name, value, word in changes:
        if name in NOT_A_RUNNING_JOBS and not job.waits:
            raise ControllerError(refusals.NOT_PENDING)
        try:
            CHANGES[name](daemon, job, value)
        except ValueError:
            raise Refusal(f"Invalid value in {word}\nRequest aborted") from None
    daemon.controller.changed(job)
    daemon.controller.wake()


def _time_limit(daemon: "Daemon", job: Job, value: str) -> None:
    sign = value[:1]
    new = times.minutes(value.lstrip("+-")) if sign in "+-" and value != "-1" else times.minutes(value)
    if sign in ("+", "-") and value != "-1":
        new = max((job.minutes or 0) + (new if sign == "+" else -new), 1)
    job.spec.minutes = new
    job.minutes = daemon.controller.limit(job.spec)
    job.warned = False


def _start_time(daemon: "Daemon", job: Job, value: str) -> None:
    job.begin = times.moment(value, daemon.controller.clock())


def _name(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.name = value


def _comment(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.comment = value


def _requeue(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.requeue = value not in ("0", "no")


def _nice(daemon: "Daemon", job: Job, value: str) -> None:
    new = int(value or 100)
    job.priority += job.spec.nice - new
    job.spec.nice = new


def _priority(daemon: "Daemon", job: Job, value: str) -> None:
    job.priority = int(value)


def _throttle(daemon: "Daemon", job: Job, value: str) -> None:
    if job.array:
        for element in daemon.model.elements(job.array.id):
            assert element.array
            element.array.throttle = int(value)


def _partition_of(daemon: "Daemon", job: Job, value: str) -> None:
    if value not in daemon.model.partitions:
        raise ControllerError(refusals.INVALID_PARTITION)
    job.spec.partition = value


def _dependency(daemon: "Daemon", job: Job, value: str) -> None:
    from clusterdp.fakeslurm.dependencies import parse as parse_dependency

    if value:
        parse_dependency(value)
    job.spec.dependency = value or None


def _features(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.features = value or None


def _excluded(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.exclude = expand(value)


def _account(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.account = value


def _qos(daemon: "Daemon", job: Job, value: str) -> None:
    job.spec.qos = value


CHANGES = {
    "timelimit": _time_limit,
    "starttime": _start_time,
    "eligibletime": _start_time,
    "jobname": _name,
    "name": _name,
    "comment": _comment,
    "requeue": _requeue,
    "nice": _nice,
    "priority": _priority,
    "arraytaskthrottle": _throttle,
    "partition": _partition_of,
    "dependency": _dependency,
    "features": _features,
    "excnodelist": _excluded,
    "account": _account,
    "qos": _qos,
}


def _nodes(daemon: "Daemon", fields: list[tuple[str, str, str]]) -> None:
    values = {name: value for name, value, _ in fields}
    for name, _, word in fields:
        if name not in ("nodename", "state", "reason", "availablefeatures", "activefeatures"):
            raise _unsupported(word)
    try:
        names = expand(values["nodename"])
    except HostlistError:
        names = [values["nodename"]]
    for name in names:
        if name not in daemon.model.nodes:
            raise Refusal(f"slurm_update error: {refusals.INVALID_NODE}")
    for name in names if "availablefeatures" in values else []:
        daemon.model.nodes[name].features = [word for word in values["availablefeatures"].split(",") if word]
        daemon.controller.write_node(name)
    state, reason = values.get("state", "").upper(), values.get("reason", "")
    if state in ("DOWN", "DRAIN", "FAIL") and not reason:
        raise Refusal("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    for name in names:
        try:
            nodes.set_node(daemon.controller, name, state, reason)
        except ControllerError as error:
            raise Refusal(f"slurm_update error: {error}") from None


def _partition(daemon: "Daemon", fields: list[tuple[str, str, str]]) -> None:
    values = {name: value for name, value, _ in fields}
    name = values.pop("partitionname")
    if name not in daemon.model.partitions:
        raise Refusal(f"slurm_update error: {refusals.INVALID_PARTITION}")
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
            raise _unsupported(word)
    daemon.controller.write_partition(name)
    daemon.controller.wake()
