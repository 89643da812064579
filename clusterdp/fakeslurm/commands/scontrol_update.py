"""scontrol update: nodes and partitions; jobs are scontrol_update_job's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterdp.fakeslurm.commands.scontrol_update_job import unsupported, update_jobs
from clusterdp.fakeslurm.core import error_texts, times
from clusterdp.fakeslurm.core.error_texts import ControllerError, Refusal
from clusterdp.fakeslurm.slurmctld import nodes
from clusterdp.slurm.hostlist import HostlistError, expand

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon


NODE_STATES = "NoResp DRAIN FAIL FUTURE RESUME POWER_DOWN POWER_UP UNDRAIN"
BAD_STATE = """Invalid input: {}
Request aborted
Valid states are: {}
Not all states are valid given a node's prior state"""
READ = {"DOWN", "DRAIN", "FAIL", "RESUME", "UNDRAIN", "IDLE", "FUTURE", "POWER_DOWN", "POWER_UP", "NORESP"}


def update(client: Connection, daemon: Daemon, words: list[str]) -> int:
    fields = [(word.partition("=")[0].lower(), word.partition("=")[2], word) for word in words]
    names = {name for name, _, _ in fields}
    if names & {"jobid", "job"} or (fields and fields[0][0] in ("jobname", "name")):
        return update_jobs(client, daemon, fields)
    if "nodename" in names:
        _nodes(daemon, fields)
        return 0
    if "partitionname" in names:
        _partition(daemon, fields)
        return 0
    entities = '"NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"'
    raise Refusal(f"No valid entity in update command\nInput line must include {entities}")


def _nodes(daemon: Daemon, fields: list[tuple[str, str, str]]) -> None:
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
    for name in names:
        try:
            nodes.set_node(daemon.controller, name, state, reason)
        except ControllerError as error:
            raise Refusal(f"slurm_update error: {error}") from None


def _partition(daemon: Daemon, fields: list[tuple[str, str, str]]) -> None:
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
