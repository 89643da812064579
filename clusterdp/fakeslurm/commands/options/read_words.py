"""Splits a command line into options and other words. --help, --usage and --version end the command.

The module also has options that several commands share: --clusters (there is one cluster) and --iterate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.error_texts import CommandDone, Refusal
from .getopt import GetoptParser

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon


def read_words(
    client: Connection, daemon: Daemon, parser: GetoptParser, usage: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the options and the words that are not options, in any order. Raises getopt's Refusal for unknown
    options."""
    pairs, rest = parser.parse(client.words, permute=True)
    given = {name for name, _ in pairs}
    if given & {"help", "usage"}:
        client.print(usage)
        raise CommandDone
    if "version" in given:
        client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
        raise CommandDone
    return pairs, rest


def cluster_named(command: str, name: str | None, daemon: Daemon, entry: str = "SLURM_CLUSTERS") -> str | None:
    """Returns the cluster's name if --clusters is given, or None. Raises Refusal for the name of another cluster."""
    if name and name not in ("all", daemon.shape.name):
        fatal = ""
        if entry == "SLURM_CLUSTERS" and daemon.shape.settings.release.clusters_are_fatal:
            entry, fatal = "--cluster", f"\n{command}: fatal: Could not get cluster information"
        raise Refusal(
            f"{command}: error: No cluster '{name}' known by database.\n{command}: error: '{name}' can't be reached "
            f"now, or it is an invalid entry for {entry}.  Use 'sacctmgr list clusters' to see available clusters."
            + fatal
        )
    return daemon.shape.name if name else None


async def iterate(client: Connection, options: dict[str, str], once: Callable[[], int]) -> int:
    """Prints the output of `once`, with the date before it if requested. Returns the exit status of `once`."""
    dated = bool({"iterate", "long"} & options.keys()) and "noheader" not in options
    while True:
        if dated and not {"json", "yaml"} & options.keys():
            client.print(time.strftime("%a %b %d %H:%M:%S %Y"))
        if "iterate" not in options:
            return once()
        try:
            once()
        except Refusal as refusal:
            client.error(refusal.text)
        client.print("")
        await client.flush()
        try:
            await asyncio.wait_for(client.hung_up(), float(options["iterate"]))
            return 0
        except asyncio.TimeoutError:
            pass
