"""Runs commands while the controller has faults (faults.py): late, too late, or not at all.

What commands print then, when, and with which exit status was recorded from Slurm 22.05 with its slurmctld stopped
(SIGSTOP: no answer ever came) and killed (nobody listened). Running steps and jobs go on meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core.error_texts import CommandDone, Refusal

if TYPE_CHECKING:
    from clusterdp.fakeslurm.core.faults import Faults
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

TIMED_OUT = (
    "Socket timed out on send/recv operation",
    140,
)  # the number is the exit status of scancel, made of the error's number
NO_CONTACT = ("Unable to contact slurm controller (connect failure)", 8)
LOADS = {"job": "jobs", "jobs": "jobs", "step": "jobs", "node": "node", "nodes": "node", "config": "ctl_conf"}
LOADS |= {"partition": "partitions", "partitions": "partitions"}
LOCAL = ("hostname", "hostlist")  # `scontrol show hostnames` needs no controller
ASKS_TWICE = r"(-j|--jobs?\b|--signal|-s\b|show (job|step)s? \S)"  # these ask twice, and so wait twice as long
ELSEWHERE = ("sacct", "sacctmgr", "control")  # these ask slurmdbd, or no part of Slurm
LOOK_AGAIN_S = 0.1

Command = Callable[["Connection", "Daemon"], Awaitable[int]]


async def answer(command: Command, client: Connection, daemon: Daemon) -> int:
    """Run a command as far and as fast as the faults of the controller allow."""
    faults, patience_s = daemon.model.faults, daemon.shape.settings.message_timeout_s
    words = " ".join(client.words)
    if client.command in ELSEWHERE or re.match(rf"(-\S+ )*show {LOCAL[0]}|(-\S+ )*show {LOCAL[1]}", words):
        return await command(client, daemon)
    times = 2 if re.search(ASKS_TWICE, words) and client.command != "sbatch" else 1
    if faults.away:
        await _until_back(faults, (patience_s - 1) * times)
        if faults.away:
            raise complaint(client, *NO_CONTACT)
    if client.command == "sbatch" and faults.draw():
        daemon.controller.records.history.write("flaky", command=" ".join([client.command, *client.words]))
        raise complaint(client, *TIMED_OUT)
    if faults.late_s <= patience_s:
        if faults.late_s:
            await asyncio.sleep(faults.late_s)
        return await command(client, daemon)
    await _in_vain(command, client, daemon, patience_s * times)
    raise complaint(client, *TIMED_OUT)


async def _until_back(faults: Faults, at_most_s: float) -> None:
    """Wait until the controller is back. Commands try to connect every second."""
    end = time.monotonic() + at_most_s
    while faults.away and time.monotonic() < end:
        await asyncio.sleep(LOOK_AGAIN_S)


async def _in_vain(command: Command, client: Connection, daemon: Daemon, patience_s: float) -> None:
    """Do what was asked without an answer: a job is submitted although sbatch says that it failed."""
    end = time.monotonic() + patience_s
    if client.command in ("sbatch", "scancel", "scontrol"):
        try:
            await asyncio.wait_for(command(client, daemon), patience_s)
            daemon.controller.settle()
        except (Refusal, CommandDone, asyncio.TimeoutError):
            pass
        client.discard_output()
    await asyncio.sleep(max(end - time.monotonic(), 0))


def complaint(client: Connection, text: str, number: int) -> Refusal:
    """What the command says when it got no answer."""
    words, job = client.words, client.environ.get("SLURM_JOB_ID") or client.environ.get("SLURM_JOBID")
    if client.command == "sbatch":
        return Refusal(f"sbatch: error: Batch job submission failed: {text}")
    if client.command == "salloc":
        return Refusal(f"salloc: error: Job submit/allocate failed: {text}")
    if client.command == "srun" and job:
        lost = f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {job}"
        return Refusal(f"srun: error: Unable to confirm allocation for job {job}: {text}\n{lost}")
    if client.command == "srun":
        return Refusal(f"srun: error: Unable to allocate resources: {text}")
    if client.command == "sinfo":
        return Refusal(f"slurm_load_partitions: {text}")
    ids = [word for word in words if word[:1].isdigit()]
    if client.command == "scancel" and ids and not re.search(ASKS_TWICE, " ".join(words)):
        lines = [f"scancel: error: Kill job error on job id {each}: {text}" for each in ids]
        return Refusal("\n".join(lines), number)
    if client.command == "scontrol":
        return _of_scontrol(client, [word for word in words if not word.startswith("-")], text)
    return Refusal(f"slurm_load_jobs error: {text}")


def _of_scontrol(client: Connection, words: list[str], text: str) -> Refusal:
    verb, *rest = words or [""]
    if verb == "ping":
        from clusterdp.fakeslurm.core.shape import host_name

        stars = "*" * 41
        client.print(
            f"Slurmctld(primary) at {host_name()} is DOWN\n{stars}\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n{stars}"
        )
        raise CommandDone(1)
    if verb == "show":
        return Refusal(f"slurm_load_{LOADS.get(rest[0].lower() if rest else '', 'jobs')} error: {text}")
    named = [word.partition("=")[2] for word in rest if word.lower().startswith(("jobid=", "job="))]
    job = named[0] if named else rest[0] if rest and verb != "update" else ""
    return Refusal(f"Unexpected message received for job {job}" if job else f"slurm_update error: {text}")
