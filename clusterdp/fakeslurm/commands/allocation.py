"""What srun outside of a job and salloc share: a job of their own, and the wait for its nodes."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.commands.getopt import Parser
from clusterdp.fakeslurm.commands.parsed_options import Asked
from clusterdp.fakeslurm.commands.spec_of_options import job_spec
from clusterdp.fakeslurm.core import error_texts
from clusterdp.fakeslurm.core.error_texts import ControllerError, Refusal
from clusterdp.fakeslurm.core.job_spec import JobSpec
from clusterdp.fakeslurm.core.model import Job
from clusterdp.fakeslurm.core.shape import host_name
from clusterdp.fakeslurm.core.times import stamp
from clusterdp.fakeslurm.slurmctld import job_end, submit_checks
from clusterdp.fakeslurm.slurmctld.connection import Gone
from clusterdp.slurm.hostlist import compress

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Conversation
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

Pairs = list[tuple[str, str]]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Voice:
    """In what the two differ: their words."""

    command: str
    refused: str  # before the reason of a refusal
    pending: tuple[str, ...]  # what is said of a job that has to wait, {} its id
    interrupted: tuple[str, ...]
    cancelled: tuple[str, ...]

    def info(self, talk: Conversation, asked: Asked, *texts: str) -> None:
        """What --quiet keeps back."""
        if "quiet" not in asked:
            for text in texts:
                talk.error(f"{self.command}: {text}")


def command_line(parser: Parser, words: list[str]) -> tuple[list[Pairs], list[str]]:
    """The options of each component of a job (divided by colons), and what follows them."""
    lines: list[Pairs] = []
    while True:
        line, rest = parser.parse(words, permute=False)
        lines.append(line)
        if not rest or rest[0] != ":":
            return lines, rest
        words = rest[1:]


def components_of(command: str, lines: list[Pairs], directives: list[Pairs], variables: Pairs) -> list[Asked]:
    """What each component asks for: its lines in the script < variables < the command line."""
    components, before = list[Asked](), Asked(command)
    for number in range(max(len(lines), len(directives))):
        asked = before.after()
        asked.add(directives[number] if number < len(directives) else [])
        asked.add(variables)
        asked.add(lines[number] if number < len(lines) else [])
        components.append(asked)
        before = asked
    return components


def spec_for(talk: Conversation, daemon: Daemon, asked: Asked, voice: Voice, name: str) -> JobSpec:
    partitions = daemon.model.partitions
    partition = asked.get("partition") or daemon.model.default_partition.name
    for each in partition.split(","):
        if each not in partitions:
            text = f"{voice.command}: error: invalid partition specified: {each}"
            raise Refusal(f"{text}\n{voice.refused}{error_texts.INVALID_PARTITION}")
    try:
        spec = job_spec(asked, talk.cwd, partition.split(",")[0], talk.error, daemon.controller.clock())
    except ControllerError as error:
        raise error.refusal(voice.command, voice.refused) from None
    spec.name = asked.get("job-name") or name
    spec.batch, spec.token = False, talk.token
    spec.host, spec.alloc_pid, spec.umask = host_name(), talk.pid, talk.umask
    spec.submit_line = " ".join([voice.command, *talk.words])
    spec.account = asked.get("account") or daemon.controller.user.name
    return spec


async def allocate(talk: Conversation, daemon: Daemon, asked: Asked, specs: list[JobSpec], voice: Voice) -> Job:
    """The job when it has its nodes: one, or the first component of a heterogeneous one."""
    try:
        job = daemon.controller.submit_together(specs, None, b"", {})
    except ControllerError as error:
        raise error.refusal(voice.command, voice.refused) from None
    daemon.controller.settle()
    if not job.shares and not job.over and "immediate" in asked:
        job_end.cancel(daemon.controller, job)
        raise Refusal(f"{voice.command}: error: Unable to allocate resources: {error_texts.NODES_BUSY}")
    if not job.shares:
        if job.reason in ("PartitionConfig", "PartitionNodeLimit"):
            voice.info(talk, asked, "Requested partition configuration not available now")
        elif job.held:
            voice.info(talk, asked, "Job is in held state, pending scheduler release")
        voice.info(talk, asked, *(text.format(job.id) for text in voice.pending))
        await talk.flush()
        await _wait_for_nodes(talk, daemon, job, asked, voice)
        voice.info(talk, asked, f"job {job.id} has been allocated resources")
    return job


def test_only(talk: Conversation, daemon: Daemon, spec: JobSpec, command: str) -> int:
    """When and where it would run; as if the cluster were empty. It takes a number all the same."""
    number = daemon.model.new_id()
    try:
        submit_checks.check(daemon.model, spec, daemon.controller.clock())
        shares = daemon.controller.would_run(spec)
    except ControllerError as error:
        raise Refusal(f"allocation failure: {error}") from None
    if not shares:
        raise Refusal(f"allocation failure: {error_texts.NODE_CONFIG}")
    nodes, cpus = compress([share.node for share in shares]), sum(share.cpus for share in shares)
    talk.error(
        f"{command}: Job {number} to start at {stamp(daemon.controller.clock())} using {cpus} "
        f"processors on nodes {nodes} in partition {spec.partition}"
    )
    return 0


def show_options(talk: Conversation, asked: Asked) -> None:
    """What --verbose says."""
    rows = {name: value or "set" for name, value in asked.values.items()} | {"verbose": "1"}
    rule = f"{asked.command}: -------------------- --------------------"
    talk.error(f"{asked.command}: defined options\n{rule}")
    for name in sorted(rows):
        talk.error(f"{asked.command}: {name:<20}: {rows[name]}")
    talk.error(f"{rule}\n{asked.command}: end of defined options")


async def _wait_for_nodes(talk: Conversation, daemon: Daemon, job: Job, asked: Asked, voice: Voice) -> None:
    while not job.shares:
        if job.over:
            raise Refusal("\n".join(text.format(job.id) for text in voice.cancelled))
        try:
            number = await change_or_signal(talk, daemon)
        except Gone:
            job_end.cancel(daemon.controller, job)
            daemon.controller.settle()
            raise
        if number in ENDING:
            job_end.cancel(daemon.controller, job)
            raise Refusal("\n".join(text.format(job.id) for text in voice.interrupted))


async def change_or_signal(talk: Conversation, daemon: Daemon) -> int | None:
    """Until some job changes (None), or until the command receives a signal; raises Gone if it is killed."""
    waits = [asyncio.ensure_future(daemon.change()), asyncio.ensure_future(talk.signal())]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return int(waits[1].result() or 0) if waits[1] in done else None
    finally:
        for wait in waits:
            wait.cancel()
