"""sreport: reports of whole hours and days that are over. A cluster this young has none: titles without rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.commands.getopt import GetoptParser, table
from clusterdp.fakeslurm.commands.read_words import read_words
from clusterdp.fakeslurm.core.error_texts import Refusal

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

OPTIONS = table("""
    all_clusters,a cluster,M= federation help,h immediate local noheader,n parsable,p parsable2,P quiet,Q sort,s=
    tres,T= usage verbose,v version,V
""")
LINE = "-" * 80
DAY_S = 24 * 3600
# type and name of a report: its title, whether that tells the seconds, the unit, its columns with their widths
REPORTS = {
    ("cluster", "utilization"): (
        *("Cluster Utilization", False, "Usage reported in CPU Minutes"),
        "Cluster:9 Allocate:8 Down:8 PLND+Dow:8 Idle:8 Planned:8 Reported:8",
    ),
    ("cluster", "accountutilizationbyuser"): (
        *("Cluster/Account/User Utilization", True, "Usage reported in CPU Minutes"),
        "Cluster:9 Account:15 Login:9 Proper+Name:15 Used:8 Energy:8",
    ),
    ("user", "topusage"): (
        *("Top 10 Users", True, "Usage reported in CPU Minutes"),
        "Cluster:9 Login:9 Proper+Name:15 Account:15 Used:8 Energy:8",
    ),
    ("job", "sizesbyaccount"): ("Job Sizes", True, "Time reported in Minutes", ""),
}


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, words = read_words(client, daemon, GetoptParser("sreport", OPTIONS), "sreport [<OPTION>] [<COMMAND>]")
    options = dict(pairs)
    kind, name = [*(word.lower() for word in words[:2] if "=" not in word), "", ""][:2]
    found = [REPORTS[key] for key in REPORTS if kind and key[0].startswith(kind) and name and key[1].startswith(name)]
    if not found:
        raise Refusal(f"sreport: error: the report {' '.join(words)} is not supported by this fake cluster")
    if "noheader" not in options:
        _print(client, options, *found[0], daemon.controller.clock())
    return 0


def _print(
    client: Connection, options: dict[str, str], title: str, seconds: bool, unit: str, columns: str, now: float
) -> None:
    today = time.mktime((*time.localtime(now)[:3], 0, 0, 0, 0, 0, -1))
    first, last = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(t)) for t in (today - DAY_S, today - 1))
    client.print(f"{LINE}\n{title} {first} - {last}{f' ({DAY_S} secs)' if seconds else ''}\n{unit}\n{LINE}")
    cells = [
        (name.replace("+", " "), int(width)) for name, _, width in (word.partition(":") for word in columns.split())
    ]
    if "parsable" in options or "parsable2" in options:
        if cells:
            client.print("|".join(name for name, _ in cells) + ("" if "parsable2" in options else "|"))
    elif cells:
        client.print(" ".join(name.rjust(width) for name, width in cells) + " ")
        client.print(" ".join("-" * width for _, width in cells) + " ")
