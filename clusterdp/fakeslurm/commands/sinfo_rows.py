"""Which nodes share a row of sinfo: those that are alike in what the row shows (_match_part_data() and
_match_node_data() in Slurm's sinfo.c). Of a format without the partition, a row spans partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from clusterdp.fakeslurm.commands.sinfo_fields import LETTERS, NAMES, ORDER, SAME, SinfoRow, state_words, word
from clusterdp.fakeslurm.core.model import Model, Node

OF_PARTITION = "agIlLMpPrRhsB"  # the letters of -o; a field of -O counts as its letter
OF_NODE = "bfEGHnotTuU"
EXACT = "cdeOmwXYZz"  # these tell nodes apart only with --exact
SHOW_PARTITION = frozenset("PR")
UNLETTERED = ("allocmem", "gresused")  # fields of -O that tell nodes apart, and have no letter
STATES = frozenset("tT")


@dataclass(frozen=True)
class SinfoGrouping:
    """What tells rows apart: the letters that are shown, and two options."""

    shown: frozenset[str]
    per_node: bool = False  # -N: each node of each partition
    exact: bool = False  # --exact

    def rows(self, groups: Iterable[SinfoRow]) -> list[SinfoRow]:
        """Of the nodes of each partition, given as one row; a partition that has none keeps its empty row if
        partitions are shown."""
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
        """By node with -N; else by partition, then by state if rows differ in it."""
        if self.per_node:
            return list(row.model.nodes).index(row.nodes[0].name), 0
        rank = ORDER.index(row.state.rstrip("*")) if row.nodes and self.shown & STATES else 0
        return list(row.model.partitions).index(row.partition.name), rank


def letters_of(keys: Iterable[str]) -> frozenset[str]:
    """Of the fields of -o or -O."""
    return frozenset(SAME.get(key, key) for key in keys)


def matches(model: Model, node: Node, states: list[str]) -> bool:
    """Whether the node is in one of these states, as --states names them."""
    names = {word(model, node).rstrip("*"), state_words(model, node).split("+")[0].lower()}
    if node.drain:
        names.add("drain")
    if not node.responding:
        names.add("no_respond")
    return bool(names & set(states))
