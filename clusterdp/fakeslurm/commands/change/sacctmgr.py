"""sacctmgr: shows the clusters and users that accounting has, and cannot change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.error_texts import Refusal
from ..options.getopt import GetoptParser, table
from ..options.read_words import read_words

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    associations,s help,h immediate,i noheader,n oneliner,o parsable,p parsable2,P quiet,Q readonly,r usage verbose,v
    version,V
""")
TRES = "billing||5 cpu||1 energy||3 fs|disk|6 mem||2 node||4 pages||8 vmem||7".split()
LIMITS = "GrpJobs GrpTRES GrpSubmit GrpWall GrpTRESMins MaxJobs MaxTRES MaxTRESPerNode MaxSubmit MaxWall MaxTRESMins"
COLUMNS = {
    "account": "Account Descr Org",
    "association": f"Cluster Account User Partition Share Priority {LIMITS} QOS DefaultQOS GrpTRESRunMins",
    "cluster": "Cluster ControlHost ControlPort RPC Share QOS DefaultQOS",
    "qos": """
        Name Priority GraceTime Preempt PreemptExemptTime PreemptMode Flags UsageThres UsageFactor GrpTRES GrpTRESMins
        GrpTRESRunMins GrpJobs GrpSubmit GrpWall MaxTRES MaxTRESPerNode MaxTRESMins MaxWall MaxTRESPU MaxJobsPU
        MaxSubmitPU MaxTRESPA MaxTRESRunMinsPA MaxTRESRunMinsPU MaxJobsPA MaxSubmitPA MinTRES
    """,
    "tres": "Type Name ID",
    "user": "User DefaultAccount Admin",
}
QOS = {"usagefactor": "1.000000", "id": "1", "description": "Normal QOS default"}
NO_ENTITY = """No valid entity in list command
Input line must include "Account", "Association", "Cluster", "Configuration",
"Event", "Federation", "Problem", "QOS", "Resource", "Reservation",
"RunAwayJobs", "Stats", "Transaction", "TRES", "User", or "WCKey\""""
TITLES = {"DefaultQOS": "Def QOS", "DefaultAccount": "Def Acct", "Description": "Descr"}
OTHER_NAMES = {"maxtrespj": "MaxTRES", "maxtresperjob": "MaxTRES", "maxtrespn": "MaxTRESPerNode"}
OTHER_NAMES |= {f"max{what}peruser": f"Max{what}pu" for what in ("tres", "jobs", "submitjobs")}
# Fields of users that --format also accepts, even abbreviated.
OF_USERS = (
    "Cluster Account Partition Share Priority MaxJobs MaxNodes MaxCPUs MaxSubmit MaxWall MaxCPUMins QOS DefaultQOS"
)
MORE = {
    "user": f"{OF_USERS} MaxTRES MaxTRESMins GrpTRES GrpJobs GrpTRESMins",
    "account": "Cluster User",
    "association": "ParentName",
    "cluster": "Account User",
    "qos": """
        ID Description LimitFactor GrpJobsAccrue MinPrioThres MaxJobsAccruePA MaxJobsAccruePU MaxCPUs MaxJobs GrpCPUs
        GrpNodes
    """,
}


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, words = read_words(client, daemon, GetoptParser("sacctmgr", OPTIONS), "sacctmgr [<OPTION>] [<COMMAND>]")
    options = dict(pairs)
    if len(words) < 2 or words[0].lower() not in ("show", "list"):
        raise Refusal(f"sacctmgr: error: {' '.join(words) or 'no command'} is not supported by this fake cluster")
    entity = next((name for name in COLUMNS if len(words[1]) > 1 and name.startswith(words[1].lower().rstrip("s"))), "")
    if not entity:
        raise Refusal(NO_ENTITY)
    given = dict(word.lower().split("=", 1) for word in words[2:] if "=" in word)
    names = {word.lower() for word in words[2:] if "=" not in word} - {"where"}
    joined = "associations" in options or "withassoc" in names
    columns = COLUMNS[entity] + (f" {OF_USERS}" if joined and entity == "user" else "")
    form = given.pop("format", "")
    fields = form.split(",") if form else columns.split()
    rows = [row for row in _rows(daemon, entity, joined) if _meant(row, given, names - {"withassoc"})]
    _print(client, options, fields, rows, entity)
    return 0


def _meant(row: dict[str, str], given: dict[str, str], names: set[str]) -> bool:
    """Whether a row matches the condition `user=NAME` after `where`, or has a value that is one of `names`."""
    values = {value.lower() for value in row.values()}
    return (not names or bool(names & values)) and all(
        row.get(key, value) in value.split(",") for key, value in given.items()
    )


def _rows(daemon: Daemon, entity: str, joined: bool) -> list[dict[str, str]]:
    user, cluster = daemon.controller.user.name, daemon.shape.name
    own = {"cluster": cluster, "account": user, "user": user, "share": "1", "qos": "normal", "defaultaccount": user}
    if entity == "association":
        return [{**own, "user": ""}, own]
    if entity == "account":
        return [{**own, "descr": f"default {user} account", "org": user}]
    if entity == "qos":
        return [{"name": "normal", "priority": "0", "gracetime": "00:00:00", "preemptmode": "cluster", **QOS}]
    if entity == "tres":
        return [dict(zip(("type", "name", "id"), row.split("|"), strict=True)) for row in TRES]
    if entity == "user" and not joined:
        own = {"user": user, "defaultaccount": user}
    return [{**own, "admin": "Administrator", "controlhost": "127.0.0.1"}]


def _print(
    client: Connection, options: dict[str, str], fields: list[str], rows: list[dict[str, str]], entity: str
) -> None:
    names = [_known(field.partition("%")[0], entity) for field in fields]
    widths = [int(field.partition("%")[2] or 10) for field in fields]
    titles = [TITLES.get(name, name) for name in names]
    header = "noheader" not in options
    table_rows = [[row.get(name.lower(), "") for name in names] for row in rows]
    if "parsable" in options or "parsable2" in options:
        end = "" if "parsable2" in options else "|"
        for row in [titles] * header + table_rows:
            client.print("|".join(row) + end)
        return
    if header:
        client.print(" ".join(title.rjust(width) for title, width in zip(titles, widths, strict=True)) + " ")
        client.print(" ".join("-" * width for width in widths) + " ")
    for row in table_rows:
        client.print(" ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) + " ")


def _known(asked: str, entity: str) -> str:
    names = [*COLUMNS[entity].split(), *MORE.get(entity, "").split()]
    asked = OTHER_NAMES.get(asked.lower(), asked)
    found = [name for name in names if asked and name.lower().startswith(asked.lower())]
    if not found:
        raise Refusal(f"Unknown field '{asked}'")
    return found[0]
