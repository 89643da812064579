"""ClusterFacts: what Slurm says of the cluster, asked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from clusterdp.config.tree import ResourcesConfig
from clusterdp.errors import SlurmError
from clusterdp.slurm import commands
from clusterdp.slurm.nodes import NodeGroup
from clusterdp.slurm.quantities import seconds_of

T = TypeVar("T")
TIMEOUT_S = 10.0  # for each question
# The words of AccountingStorageEnforce by which each is enforced: some imply others.
ENFORCING = {
    "associations": {"associations", "limits", "safe", "qos", "wckeys", "all"},
    "limits": {"limits", "safe", "all"},
    "qos": {"qos", "all"},
}


@dataclass(frozen=True)
class ClusterFacts:
    """Empty where Slurm was not asked, or does not answer; `silent` names what did not."""

    groups: Sequence[NodeGroup] = ()
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    accounts: Sequence[tuple[str, str]] = ()
    qos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def asked(self, names: str | None) -> list[str]:
        """The partitions of a job that names these, or none."""
        if names:
            return names.split(",")
        return [name for name, limits in self.partitions.items() if limits.get("Default") == "YES"]

    def qos_of(self, resources: ResourcesConfig) -> list[str]:
        """Those whose limits hold for a job: its own, and that of its partition, if it names one alone."""
        names = self.asked(resources.partition)
        of_partition = self.partitions.get(names[0], {}).get("QoS", "N/A") if len(names) == 1 else "N/A"
        return [name for name in (resources.qos, of_partition) if name and name not in ("N/A", "(null)")]

    def enforces(self, what: str) -> bool:
        """Whether Slurm refuses jobs because of `associations`, `limits` or `qos`."""
        enforced = set(self.settings.get("AccountingStorageEnforce", "").lower().split(","))
        return not enforced.isdisjoint(ENFORCING[what])

    def number(self, setting: str) -> int | None:
        said = self.settings.get(setting, "")
        return int(said) if said.isdecimal() else None

    @property
    def kill_wait_s(self) -> float:
        """Between TERM and KILL."""
        return seconds_of(self.settings.get("KillWait", "")) or 30.0


def ask_cluster(resources: ResourcesConfig) -> ClusterFacts:
    """The controller gets three questions. Accounting is asked where an account or a QOS matters."""
    silent: list[str] = []

    def answer(name: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except SlurmError:
            silent.append(name)
            return None

    try:
        partitions = commands.show_partitions(TIMEOUT_S)
    except SlurmError:  # the controller is away
        return ClusterFacts(silent=("scontrol",))
    groups = answer("sinfo", lambda: commands.node_groups(timeout_s=TIMEOUT_S)) or []
    settings = answer("scontrol show config", lambda: commands.show_config(TIMEOUT_S)) or {}
    facts = ClusterFacts(groups, partitions, settings)
    if resources.account or resources.qos:
        accounts = answer("sacctmgr show associations", lambda: commands.accounts(TIMEOUT_S)) or []
        facts = replace(facts, accounts=accounts)
    if facts.qos_of(resources):
        facts = replace(facts, qos=answer("sacctmgr show qos", lambda: commands.show_qos(TIMEOUT_S)) or {})
    return replace(facts, silent=tuple(silent))
