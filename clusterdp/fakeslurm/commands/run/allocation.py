"""The allocation code that salloc and srun outside of jobs share: a job without a script, the wait for its nodes."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core import error_texts
from ...core.error_texts import ControllerError, Refusal
from ...core.hostlist import compress
from ...core.job_desc import JobDesc
from ...core.model import JobRecord
from ...core.release import Release
from ...core.shape import host_name
from ...core.times import stamp
from ...slurmctld import job_end, submit_checks
from ...slurmctld.connection import ConnectionLost
from ..options.getopt import GetoptParser
from ..options.job_desc_of_options import job_desc
from ..options.parsed_options import ParsedOptions

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

Pairs = list[tuple[str, str]]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class AllocationTexts:
    """The messages for which salloc and srun have different texts."""

    command: str
    refused: str  # prefix of the reason of a refusal
    pending: tuple[str, ...]  # messages for a job that must wait; {} is the job's id
    interrupted: tuple[str, ...]
    cancelled: tuple[str, ...]

    def info(self, client: Connection, options: ParsedOptions, *texts: str) -> None:
        """Prints texts, unless --quiet is given."""
        if "quiet" not in options:
            for text in texts:
                client.error(f"{self.command}: {text}")

    def refusal(self, options: ParsedOptions, texts: tuple[str, ...], job: JobRecord) -> Refusal:
        """Returns the end of a command that gets no nodes. --quiet leaves only its errors."""
        shown = [text for text in texts if "quiet" not in options or text.startswith(f"{self.command}: error: ")]
        return Refusal("\n".join(shown).format(job.id))


def command_line(parser: GetoptParser, words: list[str]) -> tuple[list[Pairs], list[str]]:
    """Returns the options of each component of a job (colons separate components), and the words after the options."""
    lines: list[Pairs] = []
    while True:
        line, rest = parser.parse(words, permute=False)
        lines.append(line)
        if not rest or rest[0] != ":":
            return lines, rest
        words = rest[1:]


def components_of(
    command: str, release: Release, lines: list[Pairs], directives: list[Pairs], variables: Pairs
) -> list[ParsedOptions]:
    """Returns the options of each component of a job. The command line wins over variables, and variables win over
    #SBATCH lines in the script."""
    components, before = list[ParsedOptions](), ParsedOptions(command, release)
    for number in range(max(len(lines), len(directives))):
        options = before.after()
        options.add(directives[number] if number < len(directives) else [])
        options.add(variables)
        options.add(lines[number] if number < len(lines) else [])
        components.append(options)
        before = options
    return components


def desc_for(
    client: Connection, daemon: Daemon, options: ParsedOptions, messages: AllocationTexts, name: str
) -> JobDesc:
    partition = partitions_of(options, daemon, messages.refused)
    try:
        now, release = daemon.controller.clock(), daemon.shape.settings.release
        desc = job_desc(options, client.cwd, partition, client.error, now, release)
    except ControllerError as error:
        raise error.refusal(messages.command, messages.refused) from None
    desc.name = options.get("job-name") or name
    desc.batch, desc.token = False, client.token
    desc.host, desc.alloc_pid, desc.umask = host_name(), client.pid, client.umask
    desc.submit_line = " ".join([messages.command, *client.words])
    desc.account = options.get("account") or daemon.controller.user.name
    return desc


def partitions_of(options: ParsedOptions, daemon: Daemon, refused: str) -> str:
    """Returns the value of --partition. `refused`: the prefix of the reason of a refusal."""
    text = options.get("partition") or ""
    for name in text.split(","):
        if name and name not in daemon.model.partitions:
            complaint = f"{options.command}: error: invalid partition specified: {name}"
            raise Refusal(f"{complaint}\n{refused}{error_texts.INVALID_PARTITION}")
    return text if text.strip(",") else daemon.model.default_partition.name


async def allocate(
    client: Connection, daemon: Daemon, options: ParsedOptions, descs: list[JobDesc], messages: AllocationTexts
) -> JobRecord:
    """Submits a job and waits for its nodes. Returns the job, or the first component of a heterogeneous job."""
    try:
        job = daemon.controller.submit_together(descs, None, b"", {})
    except ControllerError as error:
        raise error.refusal(messages.command, messages.refused) from None
    daemon.controller.settle()
    if not job.shares and not job.over and "immediate" in options:
        job_end.cancel(daemon.controller, job)
        raise Refusal(f"{messages.command}: error: Unable to allocate resources: {error_texts.NODES_BUSY}")
    if not job.shares:
        if job.reason in ("PartitionConfig", "PartitionNodeLimit"):
            messages.info(client, options, "Requested partition configuration not available now")
        elif job.held:
            messages.info(client, options, "Job is in held state, pending scheduler release")
        messages.info(client, options, *(text.format(job.id) for text in messages.pending))
        await client.flush()
        await _wait_for_nodes(client, daemon, job, options, messages)
        messages.info(client, options, f"job {job.id} has been allocated resources")
    return job


def test_only(client: Connection, daemon: Daemon, desc: JobDesc, command: str) -> int:
    """Prints when and where the job would run on an empty cluster. --test-only also uses up a job id."""
    try:
        submit_checks.check(daemon.model, desc, daemon.controller.clock())
        number = daemon.model.new_id()
        partition, shares = daemon.controller.would_run(desc)
    except ControllerError as error:
        daemon.model.next_id += error.numbered
        raise Refusal(f"allocation failure: {error}") from None
    if not shares:
        raise Refusal(f"allocation failure: {error_texts.NODE_CONFIG}")
    nodes, cpus = compress([share.node for share in shares]), sum(share.cpus for share in shares)
    before = daemon.shape.settings.release.before_using
    client.error(
        f"{command}: Job {number} to start at {stamp(daemon.controller.clock())} {before}using {cpus} "
        f"processors on nodes {nodes} in partition {partition}"
    )
    return 0


def show_options(client: Connection, options: ParsedOptions) -> None:
    """Prints the options, for --verbose."""
    rows = {name: value or "set" for name, value in options.values.items()} | {"verbose": "1"}
    rule = f"{options.command}: -------------------- --------------------"
    client.error(f"{options.command}: defined options\n{rule}")
    for name in sorted(rows):
        client.error(f"{options.command}: {name:<20}: {rows[name]}")
    client.error(f"{rule}\n{options.command}: end of defined options")


async def _wait_for_nodes(
    client: Connection, daemon: Daemon, job: JobRecord, options: ParsedOptions, messages: AllocationTexts
) -> None:
    while not job.shares:
        if job.over:
            raise messages.refusal(options, messages.cancelled, job)
        try:
            number = await change_or_signal(client, daemon)
        except ConnectionLost:
            job_end.cancel(daemon.controller, job)
            daemon.controller.settle()
            raise
        if number in ENDING:
            job_end.cancel(daemon.controller, job)
            raise messages.refusal(options, messages.interrupted, job)


async def change_or_signal(client: Connection, daemon: Daemon) -> int | None:
    """Waits until any job changes, and returns None, or until the command receives a signal. Raises ConnectionLost if
    the command is killed."""
    waits = [asyncio.ensure_future(daemon.change()), asyncio.ensure_future(client.signal())]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return int(waits[1].result() or 0) if waits[1] in done else None
    finally:
        for wait in waits:
            wait.cancel()
