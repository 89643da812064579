"""salloc: gets nodes for as long as a command runs. The command runs on the machine where salloc was called."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...core import error_texts, job_environ
from ...core.error_texts import CommandDone
from ...core.model import JobRecord
from ...slurmctld import job_end
from ...slurmctld.connection import ConnectionLost
from ..options.getopt import GetoptParser
from ..options.option_values import BAD
from ..options.options import SALLOC_ENVIRON, options_of
from ..options.parsed_options import ParsedOptions, signal_number
from .allocation import AllocationTexts, allocate, command_line, components_of, desc_for

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

REFUSED = "salloc: error: Job submit/allocate failed: "
REVOKED = "Job allocation {} has been revoked."
TEXTS = AllocationTexts(
    "salloc",
    REFUSED,
    pending=("Pending job allocation {}", "job {} queued and waiting for resources"),
    interrupted=("salloc: Job aborted due to signal", f"salloc: {REVOKED}"),
    cancelled=(
        "salloc: Job has been cancelled",
        f"salloc: {REVOKED}",
        f"{REFUSED}{error_texts.ALREADY_DONE}",
    ),
)


async def run(client: Connection, daemon: Daemon) -> int:
    lines, program = command_line(
        GetoptParser("salloc", options_of("salloc", daemon.shape.settings.release), BAD), client.words
    )
    given = dict(lines[0])
    if "help" in given or "usage" in given:
        client.print("Usage: salloc [OPTIONS(0)...] [ : [OPTIONS(N)]] [command(0) [args(0)...]]")
        raise CommandDone
    if "version" in given:
        client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
        raise CommandDone
    variables = [(option, client.environ[name]) for name, option in SALLOC_ENVIRON.items() if name in client.environ]
    components = components_of("salloc", daemon.shape.settings.release, lines, [], variables)
    descs = [desc_for(client, daemon, each, TEXTS, "interactive") for each in components]
    for desc in descs:
        desc.is_allocation = True
        if daemon.shape.settings.release.salloc_has_command:
            desc.command = program[0] if program else None
    options = components[0]
    job = await allocate(client, daemon, options, descs, TEXTS)
    TEXTS.info(client, options, f"Granted job allocation {job.id}")
    if "no-shell" in options:
        return 0
    assignments = [f"{name}={value}" for name, value in _variables(daemon, job, client.environ).items()]
    client.request("a", "\0".join([str(len(program)), *program, *assignments]))
    await client.flush()
    return await _while_it_runs(client, daemon, options, job)


def _variables(daemon: Daemon, job: JobRecord, environ: dict[str, str]) -> dict[str, str]:
    """Returns the variables for the command: fewer than for a batch script, because it does not run on a node."""
    controller = daemon.controller
    found = job_environ.of_job(job, controller.user, daemon.shape, str(controller.conf_path()))
    found = {name: value for name, value in found.items() if name not in job_environ.ON_NODES_ONLY}
    found |= job_environ.of_launchers(environ, daemon.shape.settings.release)
    of_components = job_environ.of_het(daemon.model, job, controller.user, daemon.shape)
    return found | {name: value for name, value in of_components.items() if "PACK" not in name}


async def _while_it_runs(client: Connection, daemon: Daemon, options: ParsedOptions, job: JobRecord) -> int:
    """Waits for the end of the command. Returns the command's exit status, or 0 if a signal killed the command. The
    command continues if the allocation ends first.
    """
    ended, revoked = asyncio.ensure_future(client.program_ended()), False
    try:
        while not ended.done():
            if not revoked and (job.completing or not job.shares):
                revoked = True
                TEXTS.info(client, options, REVOKED.format(job.id))
                if "kill-command" in options:
                    client.request("k", str(signal_number(options.get("kill-command") or "TERM") or 15))
                await client.flush()
            change = asyncio.ensure_future(daemon.change())
            await asyncio.wait([ended, change], return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        status = ended.result()
    except (ConnectionLost, OSError):
        return 1  # salloc was killed: the allocation remains, as on a Slurm without InactiveLimit
    finally:
        ended.cancel()
    if not revoked:
        TEXTS.info(client, options, f"Relinquishing job allocation {job.id}")
        job_end.relinquish(daemon.controller, job, status)
    return status >> 8
