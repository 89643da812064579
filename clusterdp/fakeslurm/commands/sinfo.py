"""sinfo: nodes and partitions."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterdp.slurm.hostlist import compress, expand

from .. import columns
from ..columns import Field
from ..getopt import Parser, table
from ..model import Model, Node, Partition
from ..refusals import NoMore, Refusal
from ..shape import VERSION
from ..times import short_clock, stamp

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..daemon import Daemon

OPTIONS = table("""
    all,a clusters,M= dead,d exact,e federation format,o= Format,O= help hide iterate,i= json local long,l list-reasons,R
    Node,N noconvert nodes,n= noheader,h partition,p= responding,r sort,S= states,t= state= summarize,s reservation,T usage
    verbose,v version,V yaml
""")
DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
SUMMARY = "%9P %.5a %.10l  %.16F %N"
PER_NODE = "%#N %.6D %#P %6t"
PER_NODE_LONG = "%#N %.6D %#P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS = "%20E %9u %19H %N"
REASONS_LONG = "%20E %12U %19H %6t %N"
STATES = ("unknown down idle allocated ? mixed future drain drained draining no_respond reserved perfctrs cloud completing "
          "powering_down powered_down power_down powering_up fail maint reboot reboot^ unknown").split()  # fmt: skip
ORDER = ["down", "drained", "draining", "mixed", "allocated", "idle"]
SHORT = {"allocated": "alloc", "mixed": "mix", "drained": "drain", "draining": "drng", "completing": "comp"}


def allocated(model: Model, name: str) -> int:
    return sum(share.cpus for job in model.holding() for share in job.shares if share.node == name)


def word(model: Model, node: Node) -> str:
    """idle, mixed, allocated, draining, drained, down; * at the end if it does not respond."""
    cpus = allocated(model, node.name)
    star = "" if node.responding else "*"
    if node.drain:
        return ("draining" if cpus else "drained") + star
    if node.down:
        return "down" + ("*" if not node.responding else "")
    if not cpus:
        return "idle" + star
    return ("allocated" if cpus >= node.cpus else "mixed") + star


def state_words(model: Model, node: Node) -> str:
    """As scontrol show node writes it: MIXED+DRAIN, DOWN+NOT_RESPONDING."""
    cpus = allocated(model, node.name)
    base = "DOWN" if node.down else "ALLOCATED" if cpus >= node.cpus else "MIXED" if cpus else "IDLE"
    return base + ("+DRAIN" if node.drain else "") + ("" if node.responding else "+NOT_RESPONDING")


@dataclass(frozen=True)
class Row:
    """Nodes of a partition that look the same."""

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
        """CPUs: allocated, idle, other, total."""
        used = idle = other = 0
        for node in self.nodes:
            cpus = allocated(self.model, node.name)
            used += cpus
            if node.usable:
                idle += node.cpus - cpus
            else:
                other += node.cpus - cpus
        return used, idle, other, used + idle + other

    def node_sums(self) -> tuple[int, int, int, int]:
        used = sum(1 for node in self.nodes if node.usable and allocated(self.model, node.name))
        other = sum(1 for node in self.nodes if not node.usable)
        return used, len(self.nodes) - used - other, other, len(self.nodes)

    def same(self, of: str) -> str:
        """A number of the nodes, with + if they differ."""
        values = [getattr(node, of) for node in self.nodes]
        return f"{min(values)}+" if len(set(values)) > 1 else str(values[0]) if values else "0"

    @property
    def gres(self) -> str:
        gpus = self.nodes[0].gpus if self.nodes else 0
        return f"gpu:{gpus}" if gpus else "(null)"

    @property
    def gres_used(self) -> str:
        names = {node.name for node in self.nodes}
        used = sum(len(s.gpus) for job in self.model.holding() for s in job.shares if s.node in names)
        return f"gpu:{used}" if self.nodes and self.nodes[0].gpus else "(null)"

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


def _f(title: str, value: object) -> Field[Row]:
    return Field(title, value)  # type: ignore[arg-type]


LETTERS: dict[str, Field[Row]] = {
    "a": _f("AVAIL", lambda r: "up" if r.partition.up else "down"),
    "A": _f("NODES(A/I)", lambda r: _slashed(r.node_sums()[:2])),
    "b": _f("ACTIVE_FEATURES", lambda r: ",".join(r.nodes[0].features) if r.nodes else ""),
    "B": _f("MAX_CPUS_PER_NODE", lambda r: "UNLIMITED"),
    "c": _f("CPUS", lambda r: r.same("cpus")),
    "C": _f("CPUS(A/I/O/T)", lambda r: _slashed(r.sums())),
    "d": _f("TMP_DISK", lambda r: "0"),
    "D": _f("NODES", lambda r: str(len(r.nodes))),
    "E": _f("REASON", lambda r: r.reason),
    "f": _f("AVAIL_FEATURES", lambda r: ",".join(r.nodes[0].features) if r.nodes and r.nodes[0].features else "(null)"),
    "F": _f("NODES(A/I/O/T)", lambda r: _slashed(r.node_sums())),
    "g": _f("GROUPS", lambda r: "all"),
    "G": _f("GRES", lambda r: r.gres),
    "h": _f("OVERSUBSCRIBE", lambda r: "NO"),
    "H": _f("TIMESTAMP", lambda r: stamp(r.nodes[0].reason_time) if r.nodes and r.nodes[0].reason else "Unknown"),
    "I": _f("PRIO_JOB_FACTOR", lambda r: "1"),
    "l": _f("TIMELIMIT", lambda r: r.limit),
    "L": _f("DEFAULTTIME", lambda r: "n/a"),
    "m": _f("MEMORY", lambda r: r.same("memory_mb")),
    "M": _f("PREEMPT_MODE", lambda r: r.partition.preempt),
    "n": _f("HOSTNAMES", lambda r: r.nodes[0].name if r.nodes else ""),
    "N": _f("NODELIST", lambda r: compress(node.name for node in r.nodes)),
    "p": _f("PRIO_TIER", lambda r: str(r.partition.tier)),
    "P": _f("PARTITION", lambda r: r.name),
    "r": _f("ROOT", lambda r: "no"),
    "R": _f("PARTITION", lambda r: r.partition.name),
    "s": _f("JOB_SIZE", lambda r: "1-infinite"),
    "S": _f("ALLOCNODES", lambda r: "all"),
    "t": _f("STATE", lambda r: r.short_state),
    "T": _f("STATE", lambda r: r.state),
    "u": _f("USER", lambda r: r.user if r.reason != "none" else "Unknown"),
    "U": _f("USER", lambda r: f"{r.user}({r.uid})" if r.reason != "none" else "Unknown"),
    "v": _f("VERSION", lambda r: VERSION),
    "V": _f("CLUSTER", lambda r: "N/A"),
    "w": _f("WEIGHT", lambda r: "1"),
    "X": _f("SOCKETS", lambda r: r.same("cpus")),
    "Y": _f("CORES", lambda r: "1"),
    "z": _f("S:C:T", lambda r: f"{r.same('cpus')}:1:1"),
    "Z": _f("THREADS", lambda r: "1"),
}
NAMES: dict[str, Field[Row]] = {
    name: LETTERS[letter]
    for name, letter in dict(
        available="a", cpus="c", cpusstate="C", features="f", gres="G", groups="g", memory="m", nodeaiot="F", nodeai="A",
        nodelist="N", nodes="D", partition="P", partitionname="R", reason="E", socketcorethread="z", statecompact="t",
        statelong="T", time="l", timestamp="H", user="u", userlong="U", weight="w", nodehost="n", disk="d",
        oversubscribe="h", prioritytier="p", preemptmode="M", sockets="X", cores="Y", threads="Z", root="r", size="s",
    ).items()
} | {"gresused": Field("GRES_USED", lambda r: r.gres_used)}  # fmt: skip


async def run(talk: "Conversation", daemon: "Daemon") -> int:
    pairs, rest = Parser("sinfo", OPTIONS).parse(talk.words, permute=True)
    options = {"states" if name == "state" else name: value for name, value in pairs}
    if "help" in options or "usage" in options:
        talk.print("Usage: sinfo [OPTIONS]")
        raise NoMore
    if "version" in options:
        talk.print(f"slurm-wlm {VERSION}")
        raise NoMore
    for name in ("json", "yaml", "iterate", "reservation", "federation"):
        if name in options:
            raise Refusal(f"sinfo: error: --{name} is not supported by this fake cluster")
    rows = _rows(options, talk, daemon)
    header = "noheader" not in options
    if "long" in options and header:
        talk.print(time.strftime("%a %b %d %H:%M:%S %Y"))
    bad: list[str] = []

    def complain(key: str) -> str:
        bad.append(key)
        return f"%{key}"

    if "Format" in options:
        lines = columns.render("", columns.parse_long(options["Format"]), NAMES, rows, header, complain)
    else:
        form = _format(options, talk, rows)
        first, cells = columns.parse_short(form)
        lines = columns.render(first, cells, LETTERS, rows, header, complain)
    for key in bad:
        talk.error(f"Invalid node format specification: {key}")
    for line in lines:
        talk.print(line)
    return 0


def _format(options: dict[str, str], talk: "Conversation", rows: list[Row]) -> str:
    """%# is as wide as its longest content."""
    if options.get("format"):
        return options["format"]
    if "list-reasons" in options:
        return REASONS_LONG if "long" in options else REASONS
    if "summarize" in options:
        return SUMMARY
    if "Node" in options:
        form = PER_NODE_LONG if "long" in options else PER_NODE
        nodes = max([len("NODELIST"), *(len(LETTERS["N"].value(row)) for row in rows)])
        partitions = max([len("PARTITION"), *(len(row.name) for row in rows)])
        form = form.replace("%#N", f"%{max(nodes, 10)}N")
        return form.replace("%#P", f"%.{partitions}P")
    if "long" in options:
        return LONG
    return talk.environ.get("SINFO_FORMAT") or DEFAULT


def _rows(options: dict[str, str], talk: "Conversation", daemon: "Daemon") -> list[Row]:
    model, user = daemon.model, daemon.controller.user
    names = options.get("partition") or talk.environ.get("SINFO_PARTITION")
    partitions = [p for p in model.partitions.values() if not names or p.name in names.split(",")]
    states = _states(options.get("states"))
    rows = []
    for part in partitions:
        nodes = [model.nodes[name] for name in part.nodes]
        if options.get("nodes"):
            wanted = expand(options["nodes"])
            nodes = [node for node in nodes if node.name in wanted]
        if states:
            nodes = [node for node in nodes if _matches(model, node, states)]
        if "list-reasons" in options:
            nodes = [node for node in nodes if node.reason and not node.usable]
        if "responding" in options:
            nodes = [node for node in nodes if node.responding]
        if "dead" in options:
            nodes = [node for node in nodes if not node.responding]
        rows += [Row(model, part, group, user.name, user.uid) for group in _groups(options, model, nodes)]
    if "Node" in options:
        position = {name: i for i, name in enumerate(model.nodes)}
        rows.sort(key=lambda row: position[row.nodes[0].name], reverse=options.get("sort") == "-N")
    if "list-reasons" in options:
        seen: set[str] = set()
        rows = [row for row in rows if not (names_of(row) in seen or seen.add(names_of(row)))]  # type: ignore[func-returns-value]
    return rows


def names_of(row: Row) -> str:
    return compress(node.name for node in row.nodes)


def _groups(options: dict[str, str], model: Model, nodes: list[Node]) -> list[list[Node]]:
    if "Node" in options:
        return [[node] for node in nodes]
    form = options.get("format", "")
    summarized = "summarize" in options or (form and not set("tTECNnAFH") & set(form.replace("%", "")))
    if summarized:
        return [nodes]
    groups: dict[tuple[str, str, int, int, int], list[Node]] = {}
    for node in nodes:
        state = word(model, node)
        key = (state, node.reason, node.cpus, node.gpus, node.memory_mb)
        groups.setdefault(key, []).append(node)
    if form and not set("tTEH") & set(form):  # told apart by what is shown only
        merged: dict[tuple[int, int, int], list[Node]] = {}
        for key, group in groups.items():
            merged.setdefault(key[2:], []).extend(group)
        order = list(model.nodes)
        return [sorted(group, key=lambda node: order.index(node.name)) for group in merged.values()]
    if not groups:
        return [] if "states" in options or "nodes" in options or "list-reasons" in options else [[]]
    order = ORDER
    return [groups[key] for key in sorted(groups, key=lambda key: order.index(key[0].rstrip("*")))]


def _states(text: str | None) -> list[str]:
    if not text:
        return []
    found = []
    for each in text.split(","):
        low = each.lower()
        match = [state for state in STATES if state == low or SHORT.get(state) == low]
        if not match:
            raise Refusal(f'sinfo: error: Bad state string: "{each}"\nsinfo: error: valid states: {",".join(STATES)}')
        found += match
    return found


def _matches(model: Model, node: Node, states: list[str]) -> bool:
    plain = word(model, node).rstrip("*")
    base = state_words(model, node).split("+")[0].lower()
    names = {plain, base}
    if node.drain:
        names |= {"drain"}
    if not node.responding:
        names |= {"no_respond"}
    return bool(names & set(states))
