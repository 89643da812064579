"""sinfo: nodes and partitions."""

import time
from typing import TYPE_CHECKING

from clusterdp.fakeslurm import columns
from clusterdp.fakeslurm.commands import clusters
from clusterdp.fakeslurm.commands.as_json import Writer
from clusterdp.fakeslurm.commands.sinfo_fields import LETTERS, NAMES, ORDER, SHORT, Row, state_words, word
from clusterdp.fakeslurm.getopt import Parser, table
from clusterdp.fakeslurm.model import Model, Node
from clusterdp.fakeslurm.refusals import NoMore, Refusal
from clusterdp.slurm.hostlist import compress, expand

if TYPE_CHECKING:
    from clusterdp.fakeslurm.conversation import Conversation
    from clusterdp.fakeslurm.daemon import Daemon

OPTIONS = table("""
    all,a cluster:clusters,M= clusters,M= dead,d exact,e federation format,o= Format,O= help hide iterate,i= json local
    long,l list-reasons,R Node,N noconvert nodes,n= noheader,h partition,p= responding,r sort,S= states,t= summarize,s
    reservation,T usage verbose,v version,V yaml
""")
DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
SUMMARY = "%9P %.5a %.10l %.16F %N"
PER_NODE = "%#N %.6D %#P %6t"
PER_NODE_LONG = "%#N %.6D %#P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS = "%20E %9u %19H %N"
REASONS_LONG = "%20E %12U %19H %6t %N"
STATES = tuple(
    """
    unknown down idle allocated ? mixed future drain drained draining no_respond reserved perfctrs cloud completing
    powering_down powered_down power_down powering_up fail maint reboot reboot^ unknown
    """.split()
)


async def run(talk: "Conversation", daemon: "Daemon") -> int:
    pairs, _rest = Parser("sinfo", OPTIONS).parse(talk.words, permute=True)
    options = dict(pairs)
    if "help" in options or "usage" in options:
        talk.print("Usage: sinfo [OPTIONS]")
        raise NoMore
    if "version" in options:
        talk.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
        raise NoMore
    if "json" in options or "yaml" in options:
        writer = Writer(daemon.controller)
        nodes = [writer.node(daemon.model, node) for node in daemon.model.nodes.values()]
        talk.print(writer.write("nodes", nodes) if "json" in options else writer.write_yaml("nodes", nodes))
        return 0
    for name in ("iterate", "reservation"):
        if name in options:
            raise Refusal(f"sinfo: error: --{name} is not supported by this fake cluster")
    cluster = clusters.named("sinfo", options.get("clusters") or talk.environ.get("SLURM_CLUSTERS"), daemon)
    rows = _rows(options, talk, daemon)
    header = "noheader" not in options
    if "long" in options and header:
        talk.print(time.strftime("%a %b %d %H:%M:%S %Y"))
    if cluster and header:
        talk.print(f"CLUSTER: {cluster}")
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
        form = form.replace("%#N", f"%{max(nodes, 9)}N")
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
    # Without --exact, nodes are told apart by state, features and gres alone, and by these if they are shown.
    states = not form or set("tTEH") & set(form)
    groups: dict[tuple[str, str, str, int], list[Node]] = {}
    for node in nodes:
        state = word(model, node) if states else ""
        reason = node.reason if "E" in form or "list-reasons" in options else ""
        features = ",".join(node.features) if set("fb") & set(form) else ""
        groups.setdefault((state, reason, features, node.gpus if "G" in form else 0), []).append(node)
    if form and not states:
        return list(groups.values())
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
