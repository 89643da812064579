"""The fields of sinfo, and the words for the state of a node."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...core.hostlist import compress
from ...core.model import Model, Node, Partition
from ...core.state import JobState
from ...core.times import short_clock, stamp
from .columns import PrintField

ORDER = ["down", "drained", "draining", "mixed", "allocated", "idle"]
SHORT = {"allocated": "alloc", "mixed": "mix", "drained": "drain", "draining": "drng", "completing": "comp"}


def allocated(model: Model, name: str) -> int:
    """Returns the number of CPUs in use on the node. CPUs of a suspended job count as idle."""
    holding = [job for job in model.holding() if job.state is not JobState.SUSPENDED]
    return sum(share.cpus for job in holding for share in job.occupied if share.node == name)


def word(model: Model, node: Node) -> str:
    """Returns the node's state: idle, mixed, allocated, draining, drained, down. The word ends with * if the node does
    not respond."""
    cpus = allocated(model, node.name)
    star = "" if node.responding else "*"
    if node.drain:
        return ("draining" if cpus else "drained") + star
    if node.down and (node.responding or not cpus):
        return "down*"
    if not cpus:
        return "idle" + star
    return ("allocated" if cpus >= node.cpus else "mixed") + star


def planned(model: Model, node: Node) -> bool:
    """Whether the scheduler plans to start a job on the node."""
    return any(job.waits and node.name in job.planned_nodes for job in model.live_jobs())


def state_words(model: Model, node: Node) -> str:
    """Returns the node's state in the form of scontrol show node: MIXED+DRAIN, DOWN+NOT_RESPONDING."""
    cpus = allocated(model, node.name)
    base = "ALLOCATED" if cpus >= node.cpus else "MIXED" if cpus else "IDLE"
    if node.down and (node.responding or not cpus):
        base = "DOWN"
    if base == "MIXED" and model.settings.release.shows_planned and planned(model, node):
        base += "+PLANNED"
    return base + ("+DRAIN" if node.drain else "") + ("" if node.responding else "+NOT_RESPONDING")


@dataclass(frozen=True)
class SinfoRow:
    """A row of sinfo: nodes of a partition that have the same values in all shown columns."""

    model: Model
    partition: Partition
    nodes: list[Node]
    user: str
    uid: int

    @property
    def state(self) -> str:
        return word(self.model, self.nodes[0]) if self.nodes else "n/a"

    @property
    def short_state(self) -> str:
        star = "*" if self.state.endswith("*") else ""
        plain = self.state.rstrip("*")
        return SHORT.get(plain, plain) + star

    def sums(self) -> tuple[int, int, int, int]:
        """Returns how many of the row's CPUs are allocated, idle, other, and their total."""
        used = idle = other = 0
        for node in self.nodes:
            cpus = allocated(self.model, node.name)
            used += cpus
            if node.usable or word(self.model, node) == "mixed*":
                idle += node.cpus - cpus
            else:
                other += node.cpus - cpus
        return used, idle, other, used + idle + other

    def node_sums(self) -> tuple[int, int, int, int]:
        used = sum(1 for node in self.nodes if node.usable and allocated(self.model, node.name))
        other = sum(1 for node in self.nodes if not node.usable)
        return used, len(self.nodes) - used - other, other, len(self.nodes)

    def same(self, of: str) -> str:
        """Returns the value that all nodes have, or the smallest value with + if the nodes have different values."""
        values = [getattr(node, of) for node in self.nodes]
        return f"{min(values)}+" if len(set(values)) > 1 else str(values[0]) if values else "0"

    @property
    def load(self) -> str:
        """The load of this machine over five minutes, which is shown for each node."""
        return f"{os.getloadavg()[1]:.2f}"

    @property
    def free_memory(self) -> str:
        """The machine's free memory in MB, or N/A on macOS."""
        if "SC_AVPHYS_PAGES" not in os.sysconf_names:
            return "N/A"
        return str(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20)

    @property
    def active_features(self) -> str:
        features = ",".join(self.nodes[0].features) if self.nodes else ""
        return features or self.model.settings.release.no_active_features

    @property
    def gres(self) -> str:
        return (self.nodes[0].gres_of(self.nodes[0].gpus) if self.nodes else "") or "(null)"

    @property
    def gres_used(self) -> str:
        names = {node.name for node in self.nodes}
        used = sum(len(s.gpus) for job in self.model.holding() for s in job.shares if s.node in names)
        return (self.nodes[0].gres_of(used) if self.nodes else "") or "(null)"

    @property
    def reason(self) -> str:
        return (self.nodes[0].reason if self.nodes else "") or "none"

    @property
    def name(self) -> str:
        return self.partition.name + ("*" if self.partition.default else "")

    @property
    def limit(self) -> str:
        minutes = self.partition.max_minutes
        return "infinite" if not minutes else short_clock(minutes * 60)


def _slashed(numbers: tuple[int, ...]) -> str:
    return "/".join(map(str, numbers))


def _f(title: str, value: object) -> PrintField[SinfoRow]:
    return PrintField(title, value)  # type: ignore[arg-type]


LETTERS: dict[str, PrintField[SinfoRow]] = {
    "a": _f("AVAIL", lambda r: "up" if r.partition.up else "down"),
    "A": _f("NODES(A/I)", lambda r: _slashed(r.node_sums()[:2])),
    "b": _f("ACTIVE_FEATURES", lambda r: r.active_features),
    "B": _f("MAX_CPUS_PER_NODE", lambda r: "UNLIMITED"),
    "c": _f("CPUS", lambda r: r.same("cpus")),
    "C": _f("CPUS(A/I/O/T)", lambda r: _slashed(r.sums())),
    "d": _f("TMP_DISK", lambda r: "0"),
    "D": _f("NODES", lambda r: str(len(r.nodes))),
    "e": _f("FREE_MEM", lambda r: r.free_memory),
    "E": _f("REASON", lambda r: r.reason),
    "f": _f("AVAIL_FEATURES", lambda r: ",".join(r.nodes[0].features) if r.nodes and r.nodes[0].features else "(null)"),
    "F": _f("NODES(A/I/O/T)", lambda r: _slashed(r.node_sums())),
    "g": _f("GROUPS", lambda r: "all"),
    "G": _f("GRES", lambda r: r.gres),
    "h": _f("OVERSUBSCRIBE", lambda r: "NO"),
    "H": _f("TIMESTAMP", lambda r: stamp(r.nodes[0].reason_time) if r.nodes and r.nodes[0].reason else "Unknown"),
    "i": _f("RESERVATION", lambda r: ""),
    "I": _f("PRIO_JOB_FACTOR", lambda r: "1"),
    "l": _f("TIMELIMIT", lambda r: r.limit),
    "L": _f("DEFAULTTIME", lambda r: "n/a"),
    "m": _f("MEMORY", lambda r: r.same("memory_mb")),
    "M": _f("PREEMPT_MODE", lambda r: r.partition.preempt),
    "n": _f("HOSTNAMES", lambda r: r.nodes[0].name if r.nodes else ""),
    "N": _f("NODELIST", lambda r: compress(node.name for node in r.nodes)),
    "o": _f("NODE_ADDR", lambda r: "127.0.0.1"),
    "O": _f("CPU_LOAD", lambda r: r.load),
    "p": _f("PRIO_TIER", lambda r: str(r.partition.tier)),
    "P": PrintField("PARTITION", lambda r: r.name, kept="*"),
    "r": _f("ROOT", lambda r: "no"),
    "R": _f("PARTITION", lambda r: r.partition.name),
    "s": _f("JOB_SIZE", lambda r: "1-infinite"),
    "S": _f("ALLOCNODES", lambda r: "all"),
    "t": _f("STATE", lambda r: r.short_state),
    "T": _f("STATE", lambda r: r.state),
    "u": _f("USER", lambda r: r.user if r.reason != "none" else "Unknown"),
    "U": _f("USER", lambda r: f"{r.user}({r.uid})" if r.reason != "none" else "Unknown"),
    "v": _f("VERSION", lambda r: r.model.settings.slurm_version),
    "V": _f("CLUSTER", lambda r: "N/A"),
    "w": _f("WEIGHT", lambda r: "1"),
    "X": _f("SOCKETS", lambda r: r.same("cpus")),
    "Y": _f("CORES", lambda r: "1"),
    "z": _f("S:C:T", lambda r: f"{r.same('cpus')}:1:1"),
    "Z": _f("THREADS", lambda r: "1"),
}
# Long names (for -O) of fields that also have a letter (for -o).
SAME = dict(
    word.split("=")
    for word in """
    available=a cpus=c cpusstate=C features=f gres=G groups=g memory=m nodeaiot=F nodeai=A nodelist=N nodes=D
    partition=P partitionname=R reason=E socketcorethread=z statecompact=t statelong=T time=l timestamp=H user=u
    userlong=U weight=w nodehost=n disk=d oversubscribe=h prioritytier=p preemptmode=M sockets=X cores=Y threads=Z
    root=r size=s freemem=e cpusload=O nodeaddr=o version=v maxcpuspernode=B
    allocnodes=S cluster=V defaulttime=L featuresact=b priorityjobfactor=I
    """.split()
)
NAMES: dict[str, PrintField[SinfoRow]] = {name: LETTERS[letter] for name, letter in SAME.items()} | {
    "allocmem": PrintField("ALLOCMEM", lambda r: "0"),  # 0, because memory is not limited, as in Slurm by default
    "gresused": PrintField("GRES_USED", lambda r: r.gres_used),
    "comment": PrintField("COMMENT", lambda r: "(null)"),
    "extra": PrintField("EXTRA", lambda r: "(null)"),
    "port": PrintField("PORT", lambda r: "0"),
    "statecomplete": PrintField("STATECOMPLETE", lambda r: r.state),
}
