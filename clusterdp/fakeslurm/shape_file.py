"""A cluster's shape as people declare it for `fake up --shape`: a mapping of plain words, numbers and lists.

    name: mine                    # all but `nodes` may be left out
    nodes:
      - {name: "g[1-4]", cpus: 64, gpus: 8, gpu_type: a100, memory_mb: 512000, features: [a100, nvlink]}
      - {name: "c[01-16]", cpus: 32}
    partitions:
      - {name: gpu, nodes: "g[1-4]", default: true, tier: 10, max_time: "2-00:00:00"}
      - {name: low, tier: 1, preempt_mode: REQUEUE, grace_s: 120}
    settings: {kill_wait_s: 30}

All values may be text, because a YAML reader that guesses types would change 2:00:00 and OFF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .core import times
from .core.hostlist import HostlistError, expand
from .core.release import version_of
from .core.shape import QUICK, NodeShape, PartitionShape, Shape, SlurmConf
from .errors import FakeSlurmError

PREEMPT_MODES = ("OFF", "REQUEUE", "CANCEL")
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")
LEAST = {"look_s": 0.05, "tick_s": 0.05, "max_array": 1, "first_job_id": 1}


class ShapeEntry:
    """A mapping in the declaration of a shape. `shape_from` takes the mapping's keys one by one. A key that remains is
    an error."""

    def __init__(self, data: Any, path: str = "", what: str = "the shape"):
        if not isinstance(data, Mapping):
            raise FakeSlurmError(f"{path or what}: {data!r} is not a mapping. Write `key: value` lines.")
        self._rest, self._path = dict(data), path
        self._known: list[str] = []

    def refuse(self, key: str, value: Any, wrong: str) -> FakeSlurmError:
        return FakeSlurmError(f"{self._key(key)}: {value!r} {wrong}")

    def _key(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, default: Any = None) -> Any:
        self._known.append(key)
        value = self._rest.pop(key, default)
        return default if value is None else value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.take(key, default)
        if not isinstance(value, (str, int)) or value == "":
            raise self.refuse(key, value, "is not a name. Give it one.")
        return str(value)

    def number(self, key: str, default: float, least: float = 0, *, whole: bool = False) -> Any:
        value = self.take(key, default)
        try:
            if isinstance(value, bool):
                raise ValueError
            found = int(str(value)) if whole else float(str(value))
        except ValueError:
            raise self.refuse(key, value, f"is not a {'whole ' if whole else ''}number. Write one.") from None
        if not least <= found < float("inf"):
            raise self.refuse(key, value, f"is out of range. Write {least:g} or more.")
        return found

    def flag(self, key: str) -> bool:
        value = str(self.take(key, False)).lower()
        if value not in TRUE + FALSE:
            raise self.refuse(key, value, "is neither true nor false. Write one of them.")
        return value in TRUE

    def hosts(self, key: str) -> list[str]:
        value = self.take(key, "")
        try:
            return expand(",".join(map(str, value)) if isinstance(value, list) else str(value))
        except HostlistError:
            raise self.refuse(key, value, "is not a list of hosts. Write one such as n[1-4] or a1,a2.") from None

    def words(self, key: str) -> tuple[str, ...]:
        value = self.take(key, [])
        return tuple(map(str, value)) if isinstance(value, list) else tuple(filter(None, str(value).split(",")))

    def entries(self, key: str) -> list[ShapeEntry]:
        value = self.take(key, [])
        if not isinstance(value, list):
            raise self.refuse(key, value, "is not a list. Begin each entry with a dash.")
        return [ShapeEntry(each, f"{self._key(key)}[{i}]") for i, each in enumerate(value)]

    def done(self) -> None:
        """Raises FakeSlurmError if the mapping has a key that was not taken."""
        for key in self._rest:
            raise FakeSlurmError(f"{self._key(str(key))}: unknown. There are {', '.join(self._known)}.")


def shape_from(
    data: Mapping[str, Any], *, quick: bool = False, time_scale: float = 1.0, first_job_id: int | None = None
) -> Shape:
    """Returns the shape of a declaration. For an invalid value, raises FakeSlurmError with the key, the value and a
    correct form. first_job_id: the number of the first job if the declaration has none."""
    top = ShapeEntry(data)
    name = top.text("name", "fake")
    nodes = [node for entry in top.entries("nodes") for node in _nodes(entry)]
    if not nodes:
        raise FakeSlurmError("nodes: there is none. Declare at least one, such as `- {name: n1, cpus: 8}`.")
    names = [node.name for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice:
        raise FakeSlurmError(f"nodes: {twice!r} is declared twice. Name each node once.")
    partitions = [_partition(entry, names) for entry in top.entries("partitions")]
    if len({part.name for part in partitions}) < len(partitions):
        raise FakeSlurmError("partitions: two have the same name. Name each once.")
    defaults = (QUICK if quick else {}) | ({"first_job_id": first_job_id} if first_job_id else {})
    settings = _settings(ShapeEntry(top.take("settings", {}), "settings"), defaults)
    top.done()
    default = (PartitionShape("main", default=True),)
    return Shape(tuple(nodes), tuple(partitions) or default, settings.scaled(time_scale), name)


def _nodes(entry: ShapeEntry) -> list[NodeShape]:
    """Returns the nodes that one entry of `nodes` declares, such as many equal nodes."""
    hosts, like = entry.hosts("name"), NodeShape("")
    if not hosts:
        raise entry.refuse("name", "", "names no node. Write a name, or several such as n[1-4].")
    about = {
        "cpus": entry.number("cpus", like.cpus, 1, whole=True),
        "gpus": entry.number("gpus", 0, whole=True),
        "memory_mb": entry.number("memory_mb", like.memory_mb, 1, whole=True),
        "features": entry.words("features"),
        "gpu_type": str(entry.take("gpu_type", "")),
    }
    entry.done()
    return [NodeShape(host, **about) for host in hosts]


def _partition(entry: ShapeEntry, known: list[str]) -> PartitionShape:
    name, nodes = entry.text("name"), entry.hosts("nodes")
    strange = sorted(set(nodes) - set(known))
    if strange:
        raise entry.refuse("nodes", strange[0], "is not among the nodes above. Declare it there, or leave it out.")
    mode = str(entry.take("preempt_mode", "OFF")).upper()
    if mode == "FALSE":  # YAML readers turn OFF into false
        mode = "OFF"
    if mode not in PREEMPT_MODES:
        raise entry.refuse("preempt_mode", mode, f"is not one of {', '.join(PREEMPT_MODES)}. Write one of these.")
    limit = entry.take("max_time", "UNLIMITED")
    try:
        minutes = times.minutes(str(limit))
    except times.BadTime:
        raise entry.refuse("max_time", limit, 'is not a time. Write it as sbatch does: 90, "2:00:00", 1-0.') from None
    part = PartitionShape(
        name,
        default=entry.flag("default"),
        max_minutes=minutes or None,
        tier=entry.number("tier", 10, whole=True),
        preempt=mode,
        grace_s=entry.number("grace_s", 0),
        nodes=tuple(nodes),
    )
    entry.done()
    return part


def _settings(entry: ShapeEntry, defaults: Mapping[str, Any]) -> SlurmConf:
    values: dict[str, Any] = asdict(SlurmConf()) | dict(defaults)
    del values["minute_s"]  # --time-scale sets this key
    for name, value in values.items():
        if isinstance(value, (bool, str, tuple)):
            continue  # see below
        whole = name in ("max_array", "first_job_id")
        values[name] = entry.number(name, value, LEAST.get(name, 0), whole=whole)
    values |= {name: entry.flag(name) for name in ("enforce_memory", "node_local")}
    values |= {name: entry.words(name) for name in ("reservations", "licenses", "shared")}
    values["slurm_version"] = version_of(entry.text("slurm_version", values["slurm_version"]))
    entry.done()
    return SlurmConf(**values)
