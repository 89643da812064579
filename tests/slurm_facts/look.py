"""What the cluster on PATH is, and which scenarios can be recorded there with ordinary rights."""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.slurm_facts.record import SCENARIOS, SHARED, USER, Site

FORGETS_AFTER_S = 240  # the longest that a scenario takes until it looks at its jobs again
MANY_NODES = 99  # what the scenarios take for more nodes than there are


class NotPossible(Exception):
    """The message says why nothing can be recorded, and what to do."""


def ask(*words: str) -> str:
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise NotPossible(f"{words[0]}: {error.strerror}. Put Slurm's commands on PATH.") from error
    if done.returncode:
        raise NotPossible(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Node:
    name: str
    host: str
    state: str
    cpus: int
    memory: str
    gpus: int


@dataclass
class Cluster:
    """What Slurm says of itself. `roles`: the partitions that play main, low and short."""

    version: str
    config: dict[str, str]
    partitions: dict[str, dict[str, str]]
    roles: dict[str, str]
    nodes: list[Node]  # of main
    hosts: set[str]  # of all partitions, by both of their names
    reservation: str = ""
    accounts: set[str] = field(default_factory=set)
    is_root: bool = False

    @property
    def main(self) -> dict[str, str]:
        return self.partitions[self.roles["main"]]

    def role(self, name: str) -> dict[str, str]:
        return self.partitions.get(self.roles.get(name, ""), {})

    @property
    def chosen(self) -> list[Node]:
        """The nodes that scenarios call by name: those that are free first."""
        return sorted(sorted(self.nodes, key=lambda node: node.state != "idle")[:4], key=lambda node: node.name)

    def settings(self) -> dict[str, str]:
        """What decides how jobs run here. Nothing of it names people, places or machines."""
        found = self.config | {"DefMemPerNode": _default_memory(self.config)}
        for name in ("TaskProlog", "PlugStackConfig", "JobSubmitPlugins"):
            found[name] = "(null)" if found.get(name, "(null)") == "(null)" else "set"
        for key in ("Default", "DefaultTime", "MaxTime", "OverSubscribe"):
            found[f"main.{key}"] = self.main.get(key, "")
        found["main.DefMemPerNode"] = _default_memory(self.main)
        found["low.GraceTime"] = self.role("low").get("GraceTime", "no such partition")
        found["partitions"] = "main, low, short" if all(r == name for r, name in self.roles.items()) else "others"
        node = self.chosen[0]
        found |= {"CPUs of a node": str(node.cpus), "GPUs of a node": str(node.gpus), "memory of a node": node.memory}
        one_machine = len({node.host for node in self.nodes}) == 1 < len(self.nodes)
        found["machine"] = "one for all nodes" if one_machine else "one for each node"
        found["accounts of the user"] = "some" if self.accounts - {""} else "none"
        found |= {"chance": "as it fell here", "folder of jobs": "elsewhere"}
        found["user"] = "root" if self.is_root else "an ordinary one"
        return found


def _default_memory(settings: dict[str, str]) -> str:
    per_cpu = settings.get("DefMemPerCPU")
    return settings.get("DefMemPerNode", f"{per_cpu} per CPU" if per_cpu else "UNLIMITED")


def look(roles: dict[str, str], nodes: list[str], reservation: str = "", account: str = "") -> Cluster:
    config = dict(re.findall(r"^(\w+) += (.*?) *$", ask("scontrol", "show", "config"), re.MULTILINE))
    rows = [dict(re.findall(r"(\w+)=(\S*)", row)) for row in ask("scontrol", "-o", "show", "partition").splitlines()]
    partitions = {row["PartitionName"]: row for row in rows if "PartitionName" in row}
    default = next((name for name, row in partitions.items() if row.get("Default") == "YES"), "")
    roles = {"main": default} | roles
    for role, name in roles.items():
        if name not in partitions:
            raise NotPossible(f"partition {role}={name}: it does not exist. Name one of {', '.join(partitions)}.")
    nodes = nodes or (_nodes_of(reservation) if reservation else [])
    cluster = Cluster(
        version=ask("sinfo", "--version").split()[-1],
        config=config,
        partitions=partitions,
        roles=roles,
        nodes=[node for node in _nodes(roles["main"]) if not nodes or node.name in nodes],
        hosts=set(ask("sinfo", "-h", "-a", "-N", "-o", "%N %n").split()),
        reservation=reservation,
        accounts={account} | _accounts(),
        is_root=os.getuid() == 0,
    )
    if not cluster.nodes:
        raise NotPossible(f"partition main={roles['main']}: none of its nodes can be used. Name others with --nodes.")
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        raise NotPossible("AccountingStorageType: the scenarios ask sacct, and there is no accounting here.")
    return cluster


def again(cluster: Cluster) -> Cluster:
    """The same, with what its nodes do now."""
    names = {node.name for node in cluster.nodes}
    now = [node for node in _nodes(cluster.roles["main"]) if node.name in names]
    return replace(cluster, nodes=now or cluster.nodes)


def _nodes(partition: str) -> list[Node]:
    """Those that take jobs."""
    rows = [row.split("|") for row in ask("sinfo", "-h", "-N", "-p", partition, "-o", "%N|%n|%T|%c|%m|%G").splitlines()]
    nodes = [Node(n, host, state, int(cpus), memory, _gpus(gres)) for n, host, state, cpus, memory, gres in rows]
    return [node for node in nodes if node.state in ("idle", "mixed", "allocated", "completing", "reserved")]


def _gpus(gres: str) -> int:
    return sum(int(count) for count in re.findall(r"gpu(?::[^:,(]+)?:(\d+)", gres))


def _nodes_of(reservation: str) -> list[str]:
    said = re.search(r"\bNodes=(\S+)", ask("scontrol", "show", "reservation", reservation))
    return ask("scontrol", "show", "hostnames", said[1] if said else "").split()


def _accounts() -> set[str]:
    """The user's own. Without them records hold only what --account says."""
    try:
        return set(ask("sacctmgr", "-nP", "show", "assoc", f"user={USER}", "format=account").split())
    except NotPossible:
        return set()


def site_of(cluster: Cluster, account: str, qos: str, patience: int) -> Site:
    """How scenarios are played on this cluster."""
    environ = {}
    partition = "" if cluster.main.get("Default") == "YES" else cluster.roles["main"]
    for name, value in {
        "PARTITION": partition, "ACCOUNT": account, "QOS": qos, "RESERVATION": cluster.reservation,
    }.items():  # fmt: skip
        environ |= {f"{command}_{name}": value for command in ("SBATCH", "SALLOC", "SLURM") if value}
    # squeue without ids lists everybody's jobs. (SCANCEL_USER does not help: a bare scancel would end all jobs.)
    environ["SQUEUE_USERS"] = USER
    return Site(
        nodes=[node.name for node in cluster.chosen],
        partitions={role: name for role, name in cluster.roles.items() if role != name},
        environ=environ,
        names=secret_names(cluster) | ({qos: "normal"} if qos else {}),
        words=secret_patterns(cluster),
        patience=patience,
        alone=not why_not({"alone"}, cluster),
    )


def secret_names(cluster: Cluster) -> dict[str, str]:
    """Names of people, accounts and the cluster, as words of their own."""
    names = {name: "USER" for name in (*sorted(cluster.accounts), USER, _group()) if name}
    return names | {cluster.config.get("ClusterName", "") or "?": "<cluster>"}


def _group() -> str:
    import grp

    try:
        return grp.getgrgid(os.getgid()).gr_name
    except KeyError:
        return ""


def secret_patterns(cluster: Cluster) -> list[tuple[str, str]]:
    """Names of machines and folders."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    homes = sorted({str(home), os.path.realpath(home)} - {"/"}, key=len, reverse=True)
    domain = socket.getfqdn().partition(".")[2]
    prefixes, others = set(), set()
    for host in cluster.hosts - {socket.gethostname().split(".")[0]}:
        numbered = re.fullmatch(r"(.*?\D)\d+", host.split(".")[0])
        (prefixes if numbered else others).add(numbered[1] if numbered else host)
    prefixes.discard("n")  # it is what the records say
    patterns = [(rf"{re.escape(path)}(?![\w.-])", "$HOME") for path in homes]
    patterns += [(rf"\.{re.escape(domain)}\b", "")] if domain else []
    longest_first = sorted(prefixes, key=len, reverse=True)
    patterns += [(rf"(?<![\w-]){re.escape(prefix)}(?=\[?\d)", "n") for prefix in longest_first]
    return patterns + [(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "n0") for host in sorted(others)] + [FOLDER]


# Folders that are not everywhere. Those of the scenarios themselves have gone by then.
FOLDER = (
    r"(?<![\w$.)}/<])/(?!(?:bin|dev|etc|no|proc|tmp|usr)/|\S*/slurm_script)[\w.+@-]+(?:/[\w.+@%-]+)+",
    "<folder>",
)


# -- scenarios --


def scenarios() -> list[str]:
    return sorted(path.stem for path in SCENARIOS.glob("*.sh") if path.stem not in SHARED)


def needs_of(name: str) -> set[str]:
    """What a driver says of itself in a line `# needs: ...`."""
    line = re.search(r"^# needs: (.*)$", (SCENARIOS / f"{name}.sh").read_text(), re.MULTILINE)
    return set(line[1].split(", ")) if line else set()


def amount(needs: set[str], unit: str, default: int) -> int:
    found = [int(need.split()[0]) for need in needs if re.fullmatch(rf"\d+ {unit}s?", need)]
    return found[0] if found else default


def why_not(needs: set[str], cluster: Cluster) -> str | None:
    """The first reason why scenarios of these needs cannot be recorded here."""
    hardest_first = sorted(needs, key=lambda need: (need not in ("root", "alone"), need))
    reasons = (_reason(need, cluster) for need in hardest_first)
    return next((reason for reason in reasons if reason), None)


def _reason(need: str, cluster: Cluster) -> str | None:
    main, low, short = cluster.main, cluster.role("low"), cluster.role("short")
    idle = [node for node in cluster.nodes if node.state in ("idle", "reserved")]
    match need.split():
        case ["root"]:
            return "changes nodes or other people's things, which needs an administrator"
        case ["whole", "cluster"]:
            return "lists the whole cluster, with what is other people's"
        case ["alone"] if len(idle) != 4 or not (cluster.reservation or main.get("TotalNodes") == "4"):
            return "fills all of the cluster: needs four idle nodes of your own (--reservation)"
        case [count, "node" | "nodes"] if count.isdigit() and len(cluster.nodes) < int(count):
            return f"needs {count} nodes in partition main, and {len(cluster.nodes)} can be used"
        case ["few", "nodes"] if int(main.get("TotalNodes", "0")) >= MANY_NODES:
            return f"asks for {MANY_NODES} nodes as for the impossible, and partition main has them"
        case ["low"] if not low:
            return "needs a second partition (--partition low=NAME)"
        case ["preemption"] if low.get("PreemptMode", "OFF").split(",")[0] != "REQUEUE" or not _above(main, low):
            return "needs a partition whose jobs those of main requeue (--partition low=NAME)"
        case ["short"] if short.get("MaxTime") != "00:01:00":
            return "needs a partition with a limit of one minute (--partition short=NAME)"
        case ["gpus"] if min(node.gpus for node in cluster.chosen) < 2:
            return "needs two GPUs in each node"
        case ["8", "cpus"] if {node.cpus for node in cluster.chosen} != {8}:
            return "needs nodes of 8 CPUs"
        case ["shared", "nodes"] if _takes_all_memory(cluster):
            return "puts several jobs on a node, and here a job that names no memory gets all of it"
        case ["finished", "jobs"] if int(cluster.config.get("MinJobAge", "300").split()[0]) < FORGETS_AFTER_S:
            return f"asks after jobs that are over, which MinJobAge forgets too soon here (below {FORGETS_AFTER_S} s)"
        case ["no", "jobs", "named", *names] if ask("squeue", "-h", "-n", ",".join(names), "-o", "%A").strip():
            return f"cancels jobs by name, and there are some of the names {' and '.join(names)}"
    return None


def _takes_all_memory(cluster: Cluster) -> bool:
    defaults = {_default_memory(settings) for settings in (cluster.config, cluster.main)}
    return "MEMORY" in cluster.config.get("SelectTypeParameters", "").upper() and defaults == {"UNLIMITED"}


def _above(main: dict[str, str], low: dict[str, str]) -> bool:
    return int(main.get("PriorityTier", "0")) > int(low.get("PriorityTier", "0"))
