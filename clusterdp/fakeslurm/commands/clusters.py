"""--clusters: there is only one, which may be named, or `all`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core.error_texts import Refusal

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon


def named(command: str, name: str | None, daemon: Daemon, entry: str = "SLURM_CLUSTERS") -> str | None:
    """The cluster's name if --clusters was given; raises Refusal for another one."""
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
