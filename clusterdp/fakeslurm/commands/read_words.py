"""The words of a command as options and others; --help, --usage and --version end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterdp.fakeslurm.commands.getopt import GetoptParser
from clusterdp.fakeslurm.core.error_texts import CommandDone

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon


def read_words(
    client: Connection, daemon: Daemon, parser: GetoptParser, usage: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """The options may come before and after other words. Refusal for unknown ones, as getopt words it."""
    pairs, rest = parser.parse(client.words, permute=True)
    given = {name for name, _ in pairs}
    if given & {"help", "usage"}:
        client.print(usage)
        raise CommandDone
    if "version" in given:
        client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
        raise CommandDone
    return pairs, rest
