"""sinfo: lists nodes and partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...core.error_texts import Refusal
from ...core.hostlist import expand
from ...core.model import Model, Node
from ...core.release import Release
from ..options.getopt import GetoptParser, table
from ..options.read_words import cluster_named, iterate, read_words
from . import columns
from .as_json import Json, JsonWriter
from .as_newer_json import NewerJsonWriter, writer_for
from .columns import PrintField
from .sinfo_fields import LETTERS, NAMES, ORDER, SAME, SHORT, SinfoRow, state_words, word

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon


OF_PARTITION = "agIlLMpPrRhsB"  # letters of -o that show the partition; a field of -O is treated as its letter
OF_NODE = "bfEGHnotTuU"
EXACT = "cdeOmwXYZz"  # letters of -o that distinguish nodes only with --exact
SHOW_PARTITION = frozenset("PR")
UNLETTERED = ("allocmem", "gresused")  # fields of -O that distinguish nodes and have no letter of -o
SHOW_STATE = frozenset("tT")


@dataclass(frozen=True)
class SinfoGrouping:
    """The grouping of nodes into rows of sinfo: nodes with equal values in all shown fields share a row
    (_match_part_data() and _match_node_data() in sinfo.c). A row has nodes of several partitions if the format does not
    show partitions.
    """

    shown: frozenset[str]
    per_node: bool = False  # -N: a row for each node of each partition
    exact: bool = False  # --exact

    def rows(self, groups: Iterable[SinfoRow]) -> list[SinfoRow]:
        """Returns the rows that sinfo prints. `groups`: one row for each partition, with all its nodes. A partition
        without nodes has an empty row if the format shows partitions.
        """
        found: dict[tuple[str, ...], SinfoRow] = {}
        for group in groups:
            if not group.nodes and self.shown & SHOW_PARTITION and not self.per_node:
                found[group.partition.name,] = group
            for node in group.nodes:
                one = replace(group, nodes=[node])
                key = (group.partition.name, node.name) if self.per_node else self._key(one)
                row = found.setdefault(key, replace(group, nodes=[]))
                if node not in row.nodes:
                    row.nodes.append(node)
        return sorted(found.values(), key=self._place)

    def _key(self, row: SinfoRow) -> tuple[str, ...]:
        letters = OF_PARTITION + OF_NODE + (EXACT if self.exact else "")
        found = [LETTERS[letter].value(row) for letter in letters if letter in self.shown]
        return (*found, *(NAMES[name].value(row) for name in UNLETTERED if name in self.shown))

    def _place(self, row: SinfoRow) -> tuple[int, int]:
        """Returns the sort key of a row: by node with -N, else by partition, then by state if the state is shown."""
        if self.per_node:
            return list(row.model.nodes).index(row.nodes[0].name), 0
        rank = ORDER.index(row.state.rstrip("*")) if row.nodes and self.shown & SHOW_STATE else 0
        return list(row.model.partitions).index(row.partition.name), rank


def letters_of(keys: Iterable[str]) -> frozenset[str]:
    """Returns the letter of each key. A name of -O that has no letter stays a name."""
    return frozenset(SAME.get(key, key) for key in keys)


def matches(model: Model, node: Node, states: list[list[str]]) -> bool:
    """Whether the node has one of the states that --states names, or all of several that & joins."""
    names = {word(model, node).rstrip("*"), state_words(model, node).split("+")[0].lower()}
    if node.drain:
        names.add("drain")
    if "mixed" in names:
        names.add("allocated")
    if not node.responding:
        names.add("no_respond")
    return any(names.issuperset(each) for each in states)


OPTIONS = table("""
    all,a cluster:clusters,M= clusters,M= dead,d exact,e federation format,o= Format,O= help hide iterate,i= local
    long,l list-reasons,R Node,N noconvert nodes,n= noheader,h partition,p= responding,r sort,S= states,t= summarize,s
    reservation,T usage verbose,v version,V
""")
EVERYTHING = "".join(
    [*(f"%{letter}|" for letter in "abcdefghilmnoprstuvwz"), *(f"%{letter} |" for letter in "ABCDEFGHILMNOPRSTUVXYZ")]
)[:-1]
DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
SUMMARY = "%9P %.5a %.10l %.16F %N"
PER_NODE = "%#N %.6D %#P %6t"
PER_NODE_LONG = "%#N %.6D %#P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS = "%20E %9u %19H %N"
REASONS_LONG = "%20E %12U %19H %6t %N"


async def run(client: Connection, daemon: Daemon) -> int:
    release = daemon.shape.settings.release
    parser = GetoptParser("sinfo", OPTIONS + table(release.json_options))
    options = dict(read_words(client, daemon, parser, "Usage: sinfo [OPTIONS]")[0])
    if "json" in options or "yaml" in options:
        writer = writer_for(daemon.controller)
        what = _json(writer, options, client, daemon)
        write = writer.write if "json" in options else writer.write_yaml
        client.print(write(writer.sinfo_kind, what))
        return 0
    if "reservation" in options:
        raise Refusal("sinfo: error: --reservation is not supported by this fake cluster")
    if not re.fullmatch(r"[1-9]\d*", options.get("iterate", "1")):
        raise Refusal(f"sinfo: error: Error: invalid entry for --iterate={options['iterate']}")
    return await iterate(client, options, lambda: _show(options, client, daemon))


def _show(options: dict[str, str], client: Connection, daemon: Daemon) -> int:
    release = daemon.shape.settings.release
    cluster = cluster_named("sinfo", options.get("clusters") or client.environ.get("SLURM_CLUSTERS"), daemon)
    found = _nodes(options, client, daemon)
    header = "noheader" not in options
    if cluster and header:
        client.print(f"CLUSTER: {cluster}")
    bad: list[str] = []
    misspelt = columns.misspelt(options.get("Format", ""), "features_act")
    fields = {name: field for name, field in NAMES.items() if name not in misspelt}

    def complain(key: str) -> str:
        bad.append(key)
        return "" if fields else f"%{key}"

    if options.get("Format") == "all" and daemon.shape.settings.release.all_is_no_field:
        client.error("sinfo: error: Invalid job format specification: all")
    if options.get("Format") == "all" or options.get("format") == "%all":
        first, cells = columns.parse_short(EVERYTHING if "i" in _letters(release) else EVERYTHING.replace("%i|", ""))
    elif "Format" in options:
        first, cells = "", columns.parse_long(options["Format"])
    else:
        first, cells = columns.parse_short(_format(options, client, found, release))
    shown = letters_of(cell.key for cell in cells)
    rows = SinfoGrouping(shown, per_node="Node" in options, exact="exact" in options).rows(found)
    if options.get("sort") == "-N":
        rows.sort(key=lambda row: list(daemon.model.nodes).index(row.nodes[0].name), reverse=True)
    fields = fields if options.get("Format", "all") != "all" else {}
    lines = columns.render(first, cells, fields or _letters(release), rows, header, complain)
    for key in bad:
        said = "sinfo: error: Invalid job format specification" if fields else "Invalid node format specification"
        client.error(f"{said}: {key}")
    for line in lines:
        client.print(line)
    return 0


def _json(writer: JsonWriter, options: dict[str, str], client: Connection, daemon: Daemon) -> list[Json]:
    """Returns the JSON of each node; in newer releases, of each group of nodes."""
    if isinstance(writer, NewerJsonWriter):
        rows = SinfoGrouping(letters_of("PT"), exact="exact" in options).rows(_nodes(options, client, daemon))
        return [writer.sinfo_row(row) for row in rows]
    return [writer.node(daemon.model, node) for node in daemon.model.nodes.values()]


def _letters(release: Release) -> dict[str, PrintField[SinfoRow]]:
    later = set(Release.sinfo_letters_added.ever()) - set(release.sinfo_letters_added)
    return {letter: field for letter, field in LETTERS.items() if letter not in later}


def _format(options: dict[str, str], client: Connection, rows: list[SinfoRow], release: Release) -> str:
    """Returns the format of -o or the default format, in which %# is replaced by the width of the longest value."""
    if options.get("format"):
        return options["format"]
    if "list-reasons" in options:
        return REASONS_LONG if "long" in options else REASONS
    if "summarize" in options:
        return SUMMARY
    if "Node" in options:
        form = PER_NODE_LONG if "long" in options else PER_NODE
        nodes = max([len("NODELIST"), *(len(node.name) for row in rows for node in row.nodes)])
        partitions = max([len("PARTITION"), *(len(row.name) for row in rows)])
        form = form.replace("%#N", f"%{max(nodes, 9)}N")
        return form.replace("%#P", f"%.{partitions}P")
    if "long" in options:
        return release.sinfo_long
    return client.environ.get("SINFO_FORMAT") or DEFAULT


def _nodes(options: dict[str, str], client: Connection, daemon: Daemon) -> list[SinfoRow]:
    """Returns the requested partitions, each with its requested nodes."""
    model, user = daemon.model, daemon.controller.user
    names = options.get("partition") or client.environ.get("SINFO_PARTITION")
    partitions = [p for p in model.partitions.values() if not names or p.name in names.split(",")]
    wanted = set(expand(options["nodes"])) if options.get("nodes") else None
    states = _states(options.get("states"), model.settings.release.node_states.split())

    def asked(node: Node) -> bool:
        return (
            (wanted is None or node.name in wanted)
            and (not states or matches(model, node, states))
            and ("list-reasons" not in options or (bool(node.reason) and word(model, node)[:4] in ("down", "drai")))
            and ("responding" not in options or node.responding)
            and ("dead" not in options or not node.responding)
        )

    found = [
        SinfoRow(model, p, [n for n in map(model.nodes.__getitem__, p.nodes) if asked(n)], user.name, user.uid)
        for p in partitions
    ]
    narrowed = "list-reasons" in options or (options.keys() & {"nodes", "states"} and any(row.nodes for row in found))
    return [row for row in found if row.nodes or not narrowed]


def _states(text: str | None, known: list[str]) -> list[list[str]]:
    if not text or text.lower() == "all":
        return []
    return [[_state(word, known) for word in each.split("&")] for each in text.split(",")]


def _state(text: str, known: list[str]) -> str:
    low = text.lower()
    match = next((state for state in known if low in (state, SHORT.get(state))), None)
    if not match:
        raise Refusal(f'sinfo: error: Bad state string: "{text}"\nsinfo: error: valid states: {",".join(known)}')
    return match
