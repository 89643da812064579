"""ClusterFacts: Asks Slurm once about the cluster, and keeps the answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from clusterdp.config.tree import ResourcesConfig
from clusterdp.errors import SlurmError
from clusterdp.slurm import commands
from clusterdp.slurm.associations import Association
from clusterdp.slurm.nodes import NodeGroup
from clusterdp.slurm.quantities import seconds_of

T = TypeVar("T")
TIMEOUT_S = 10.0  # timeout of each Slurm command
CRED_EXPIRE_S = 120.0  # Slurm's default, if AuthInfo has no cred_expire
MOST_LEVELS = 8  # levels in the tree of accounts that are asked for
# Kind of check -> the words of AccountingStorageEnforce that turn the check on. One word may turn on several checks.
ENFORCING = {
    "associations": {"associations", "limits", "safe", "qos", "wckeys", "all"},
    "limits": {"limits", "safe", "all"},
    "qos": {"qos", "all"},
    "safe": {"safe", "all"},
}


ALL = ("ALL", "(null)", "")  # with these values, AllowAccounts and similar keys allow all


@dataclass(frozen=True)
class ClusterFacts:
    """What Slurm's commands print about the cluster. A field is empty if Slurm was not asked, or did not answer."""

    groups: Sequence[NodeGroup] = ()
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    associations: Sequence[Association] = ()
    is_stranger: bool = False  # accounting has no association of this user
    qos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    accounts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # GROUP_LIMITS by account
    silent: tuple[str, ...] = ()  # Slurm commands that did not answer
    other: str = ""  # the setting that names another cluster; if set, Slurm was not asked

    def asked(self, names: str | None) -> list[str]:
        """Returns the partitions of a job: those in `names`, or the default partitions if `names` is None."""
        if names is not None:
            return [name for name in names.split(",") if name] or [""]
        return [name for name, limits in self.partitions.items() if limits.get("Default") == "YES"]

    @property
    def has_plugins(self) -> bool:
        """Whether the site has job submit plugins, which may change a job."""
        return self.settings.get("JobSubmitPlugins", "") not in ("", "(null)")

    def account_of(self, resources: ResourcesConfig) -> str:
        """Returns the account that the config names, or the user's default account; empty if a plugin of the site may
        choose the account."""
        if resources.account or self.has_plugins:
            return resources.account or ""
        accounts = {each.account for each in self.associations}
        return next((each.account for each in self.associations if each.is_default or len(accounts) == 1), "")

    def association_of(self, resources: ResourcesConfig, partition: str) -> Association | None:
        """Returns the job's association. In accounting, an association for this partition counts more than an
        association for all partitions."""
        account = self.account_of(resources)
        mine = {each.partition: each for each in self.associations if each.account == account}
        return mine.get(partition) or mine.get("")

    def job_qos(self, resources: ResourcesConfig, partition: str) -> str:
        """Returns the QOS that the config names, or the default QOS in this partition, or the only one that the user
        may use; empty if a plugin of the site may choose the QOS."""
        association = self.association_of(resources, partition)
        if resources.qos or association is None or self.has_plugins:
            return resources.qos or ""
        return association.default_qos or (association.qos[0] if len(association.qos) == 1 else "")

    def qos_of(self, resources: ResourcesConfig, partition: str) -> list[str]:
        """Returns the QOS whose limits hold for a job in this partition. For each limit, the first QOS that has the
        limit decides."""
        of_partition = self.partitions.get(partition, {}).get("QoS", "")
        of_job = self.job_qos(resources, partition)
        names = [of_partition, of_job]
        if "OverPartQOS" in self._flags(of_job):
            names.reverse()
        return [name for name in names if name not in ("", "N/A", "(null)")]

    def has_flag(self, resources: ResourcesConfig, partition: str, flag: str) -> bool:
        """Returns whether a QOS of the job has a flag: `DenyOnLimit`, or a flag that lifts a partition's limit, such as
        `PartitionTimeLimit` or `PartitionMaxNodes`."""
        return any(flag in self._flags(name) for name in self.qos_of(resources, partition))

    def _flags(self, qos: str) -> list[str]:
        return self.qos.get(qos, {}).get("Flags", "").split(",")

    def enforces(self, what: str) -> bool:
        """Returns whether Slurm enforces `what`. Because of `associations`, `limits` or `qos`, Slurm refuses jobs.
        Because of `safe`, Slurm starts no job that would exceed a budget."""
        enforced = set(self.settings.get("AccountingStorageEnforce", "").lower().split(","))
        return not enforced.isdisjoint(ENFORCING[what])

    def number(self, setting: str) -> int | None:
        said = self.settings.get(setting, "")
        return int(said) if said.isdecimal() else None

    @property
    def has_accounting(self) -> bool:
        """Whether Slurm records accounts and QOS."""
        return self.settings.get("AccountingStorageType", "?") not in ("", "(null)", "accounting_storage/none")

    @property
    def knows_me(self) -> bool:
        """Whether Slurm knows the account and the QOS of this user's jobs."""
        return self.has_accounting and not self.is_stranger

    def admits_some(self, resources: ResourcesConfig) -> bool:
        """Returns whether a partition of the job admits only some accounts or QOS."""
        limits = [self.partitions.get(name, {}) for name in self.asked(resources.partition)]
        return any(each.get(key, "ALL") not in ALL for each in limits for key in ("AllowAccounts", "AllowQos"))

    @property
    def counts_memory(self) -> bool:
        """Whether Slurm divides a node's memory between jobs. If this is False, Slurm still compares --mem with the
        node's memory, but for --mem-per-cpu it compares only the amount for one CPU."""
        said = self.settings.get("SelectTypeParameters", "")
        return not said or "MEMORY" in said.upper()

    @property
    def requeue_wait_s(self) -> tuple[float, str]:
        """Returns (seconds, setting): how long a requeued job must wait before it may start, and the setting that
        defines the time."""
        params = self.settings.get("SchedulerParameters", "")
        if self.release >= (25, 11) and (found := re.search(r"(?:^|,)requeue_delay=(\d+)", params)):
            return float(found[1]), "requeue_delay"
        found = re.search(r"(?:^|,)cred_expire=(\d+)", self.settings.get("AuthInfo", ""))
        return (float(found[1]) if found else CRED_EXPIRE_S), "cred_expire"

    @property
    def release(self) -> tuple[int, int]:
        """Slurm's release such as (24, 11); (0, 0) if the release is unknown."""
        found = re.match(r"(\d+)\.(\d+)", self.settings.get("SLURM_VERSION", ""))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def kill_wait_s(self) -> float:
        """The seconds between the signals TERM and KILL when Slurm ends a job."""
        return seconds_of(self.settings.get("KillWait", "")) or 30.0


def ask_cluster(resources: ResourcesConfig) -> ClusterFacts:
    """Returns the facts about the cluster. The controller is asked three times, and accounting only if an account or a
    QOS matters."""
    if other := _other_cluster(resources, os.environ):
        return ClusterFacts(other=other)
    silent: list[str] = []

    def answer(name: str, ask: Callable[[], T], may_be_empty: bool = False) -> T | None:
        """Returns the result of `ask`. If Slurm does not answer, or the answer cannot be parsed, the result is None or
        an empty value."""
        try:
            answered = ask()
        except SlurmError:
            answered = None
        if not answered and (answered is None or not may_be_empty):
            silent.append(name)
        return answered

    partitions = answer("scontrol show partition", lambda: commands.show_partitions(TIMEOUT_S))
    if not partitions:  # Slurm's controller does not answer
        return ClusterFacts(silent=tuple(silent))
    groups = answer("sinfo", lambda: commands.node_groups(timeout_s=TIMEOUT_S)) or []
    settings = answer("scontrol show config", lambda: commands.show_config(TIMEOUT_S)) or {}
    facts = ClusterFacts(groups, partitions, settings)
    if resources.account or resources.qos or facts.enforces("associations") or facts.admits_some(resources):
        name = settings.get("ClusterName", "")
        mine = answer("sacctmgr show user", lambda: commands.associations(name, TIMEOUT_S), may_be_empty=True)
        facts = replace(facts, associations=mine or [], is_stranger=facts.has_accounting and mine == [])
        if facts.enforces("limits") and (account := facts.account_of(resources)):
            above = answer("sacctmgr show associations", lambda: _accounts(account, name))
            facts = replace(facts, accounts=above or {})
    if any(facts.qos_of(resources, name) for name in facts.asked(resources.partition) or [""]):
        facts = replace(facts, qos=answer("sacctmgr show qos", lambda: commands.show_qos(TIMEOUT_S)) or {})
    return replace(facts, silent=tuple(silent))


def _accounts(account: str, cluster: str) -> dict[str, dict[str, str]]:
    """Returns the GROUP_LIMITS of the account, and of its parent accounts."""
    found: dict[str, dict[str, str]] = {}
    while account and account not in found and len(found) < MOST_LEVELS:
        found[account], account = commands.account_limits(account, cluster, TIMEOUT_S)
    return found


def _other_cluster(resources: ResourcesConfig, environ: Mapping[str, str]) -> str:
    key = next((key for key in ("clusters", "cluster") if resources.extra.get(key)), "")
    if key:
        return f"resources.extra.{key}: {resources.extra[key]}"
    return f"SLURM_CLUSTERS={environ['SLURM_CLUSTERS']}" if environ.get("SLURM_CLUSTERS") else ""
