"""sshare: prints fair shares. The cluster has only one user, but programs read the user's account from sshare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.error_texts import CommandDone, Refusal
from ..options.getopt import GetoptParser, table
from ..options.read_words import read_words

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    accounts,A= all,a cluster:clusters,M= clusters,M= format,o= help,h helpformat,e long,l noheader,n parsable,p
    parsable2,P partition,m users,u= Users,U usage verbose,v version,V
""")
WIDTHS = {
    "Account": -20, "User": 10, "RawShares": 10, "NormShares": 11, "RawUsage": 11, "NormUsage": 11,
    "EffectvUsage": 13, "FairShare": 10, "LevelFS": 10, "GrpTRESMins": 30, "TRESRunMins": 30, "Cluster": 10,
    "ID": 6, "Partition": 12, "GrpTRESRaw": 30,
}  # fmt: skip
DEFAULT = "Account User RawShares NormShares RawUsage EffectvUsage FairShare".split()
LONG = "Account User RawShares NormShares RawUsage NormUsage EffectvUsage FairShare LevelFS GrpTRESMins TRESRunMins"


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, _ = read_words(client, daemon, GetoptParser("sshare", OPTIONS), "Usage:  sshare [OPTION]")
    options = dict(pairs)
    if "helpformat" in options:
        client.print(" ".join(WIDTHS))
        raise CommandDone
    columns = [_column(word) for word in options["format"].split(",")] if options.get("format") else _default(options)
    user = daemon.controller.user.name
    account = {"Account": user, "RawUsage": "0", "EffectvUsage": "0.000000"}
    own = {**account, "User": user, "RawShares": "1", "FairShare": "0.000000", "LevelFS": "0.000000"}
    rows = [] if "Users" in options else [account]
    if user in (options.get("users") or user).split(","):
        rows.append(own if "Users" in options else {**own, "Account": f" {user}"})
    _print(client, options, columns, rows)
    return 0


def _default(options: dict[str, str]) -> list[tuple[str, int]]:
    return [(name, WIDTHS[name]) for name in (LONG.split() if "long" in options else DEFAULT)]


def _column(word: str) -> tuple[str, int]:
    name, _, width = word.partition("%")
    found = next((known for known in WIDTHS if name and known.lower().startswith(name.lower())), None)
    if not found:
        raise Refusal(f'sshare: error: Invalid field requested: "{name}"')
    return found, int(width) if width.lstrip("-").isdigit() else WIDTHS[found]


def _print(
    client: Connection, options: dict[str, str], columns: list[tuple[str, int]], rows: list[dict[str, str]]
) -> None:
    titles = [name for name, _ in columns]
    lines = [titles] * ("noheader" not in options) + [[row.get(name, "") for name in titles] for row in rows]
    if "parsable" in options or "parsable2" in options:
        for line in lines:
            client.print("|".join(line) + ("" if "parsable2" in options else "|"))
        return
    if "noheader" not in options:
        lines.insert(1, ["-" * abs(width) for _, width in columns])
    for line in lines:
        cells = [
            text[: abs(width)].ljust(-width) if width < 0 else text[:width].rjust(width)
            for text, (_, width) in zip(line, columns, strict=True)
        ]
        client.print(" ".join(cells) + " ")
