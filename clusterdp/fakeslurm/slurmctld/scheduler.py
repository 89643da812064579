"""The scheduler: schedule(model, now) returns which jobs start where, which are preempted, and why the others wait. It
changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterdp.fakeslurm.core.model import JobRecord, Model, Partition, Share
from clusterdp.fakeslurm.slurmctld import submit_checks
from clusterdp.fakeslurm.slurmctld.dependencies import dependency_state
from clusterdp.fakeslurm.slurmctld.node_selection import FreeNode, all_free, free_nodes, place
from clusterdp.slurm.hostlist import compress

FOREVER = 365 * 24 * 3600.0
RESERVED = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@dataclass(frozen=True)
class StartJob:
    job: int
    shares: tuple[Share, ...]
    index: int | None = None  # the element of an array


@dataclass(frozen=True)
class PreemptJob:
    job: int


@dataclass(frozen=True)
class KeepPending:
    job: int
    reason: str
    start: float | None = None  # when it starts if all other jobs use up their time
    nodes: tuple[str, ...] = ()  # where it starts then


@dataclass(frozen=True)
class CancelInvalid:
    """Its dependency can never hold, and it asked to be cancelled in that case."""

    job: int


Decision = StartJob | PreemptJob | KeepPending | CancelInvalid


@dataclass
class _Pass:
    """One look at all waiting jobs."""

    model: Model
    now: float
    free: dict[str, FreeNode]
    reserved: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  # by node: until when it is free for others, and the tier of the job that reserved it
    blocked: set[str] = field(default_factory=set)  # partitions in which a job already waits for nodes
    decisions: list[Decision] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)  # by array: elements started in this pass
    victims: set[int] = field(default_factory=set)


def schedule(model: Model, now: float) -> list[Decision]:
    """The decisions, in the order in which they are to be carried out."""
    now_pass = _Pass(model, now, free_nodes(model))
    for job in waiting(model):
        _consider(now_pass, job)
    return now_pass.decisions


def waiting(model: Model) -> list[JobRecord]:
    """The waiting jobs, by tier of the partition, then priority."""
    jobs = [job for job in model.jobs.live.values() if job.waits]
    return sorted(jobs, key=lambda job: (-model.partitions[job.desc.partition].tier, -job.priority, job.id))


def _consider(look: _Pass, job: JobRecord) -> None:
    if job.het:
        if not job.het.offset:
            _consider_together(look, look.model.components(job))
        return
    obstacle = _obstacle(look, job)
    if obstacle == "invalid":
        look.decisions.append(CancelInvalid(job.id))
        return
    if obstacle:
        look.decisions.append(KeepPending(job.id, obstacle))
        return
    partition = look.model.partitions[job.desc.partition]
    indexes: list[int | None] = list(job.array.indexes) if job.array else [None]
    for index in indexes:
        if job.array and _throttled(look, job):
            look.decisions.append(KeepPending(job.id, "JobArrayTaskLimit"))
            return
        shares = place(job.desc, _allowed(look, job, partition))
        if not shares:
            _wait_for_nodes(look, job, partition)
            return
        for share in shares:
            look.free[share.node] = look.free[share.node].less(share)
        if job.array:
            look.started[job.array.id] = look.started.get(job.array.id, 0) + 1
        look.decisions.append(StartJob(job.id, tuple(shares), index))


def _consider_together(look: _Pass, components: list[JobRecord]) -> None:
    """Start the components of a heterogeneous job at one moment, each on nodes of its own."""
    obstacles = [_obstacle(look, job) for job in components]
    if any(obstacles):
        for job, obstacle in zip(components, obstacles, strict=True):
            look.decisions.append(
                CancelInvalid(job.id) if obstacle == "invalid" else KeepPending(job.id, obstacle or "None")
            )
        return
    found: list[StartJob] = []
    taken: set[str] = set()
    for job in components:
        partition = look.model.partitions[job.desc.partition]
        shares = place(job.desc, [free for free in _allowed(look, job, partition) if free.node.name not in taken])
        if not shares:
            _wait_for_nodes(look, job, partition)
            waits = look.decisions[-1]
            reason = waits.reason if isinstance(waits, KeepPending) else "Resources"
            look.decisions += [KeepPending(other.id, reason) for other in components if other is not job]
            return
        taken |= {share.node for share in shares}
        found.append(StartJob(job.id, tuple(shares)))
    for start in found:
        for share in start.shares:
            look.free[share.node] = look.free[share.node].less(share)
    look.decisions += reversed(found)  # the first component last: its batch script must know the nodes of the others


def _obstacle(look: _Pass, job: JobRecord) -> str:
    """Why the job cannot run whatever is free; "" if nothing is in its way."""
    if job.held:
        return job.held
    prospect = dependency_state(look.model, job, look.now)
    if prospect.impossible:
        return "invalid" if job.desc.kill_on_invalid_dep else "DependencyNeverSatisfied"
    if not prospect.done:
        return "Dependency"
    if job.begin > look.now:
        return "BeginTime"
    if job.considered_from > look.now:
        return "None"
    partition = look.model.partitions[job.desc.partition]
    if not partition.up:
        return "PartitionDown"
    if partition.max_minutes is not None and (job.desc.minutes or 0) > partition.max_minutes:
        return "PartitionTimeLimit"
    if job.desc.minutes == 0 and partition.max_minutes is not None:
        return "PartitionTimeLimit"
    everything = all_free(look.model)
    ever = [everything[name] for name in partition.nodes if name not in job.desc.exclude]
    if not place(job.desc, ever):
        return submit_checks.oversized(look.model, job.desc) or "PartitionConfig"
    return ""


def _throttled(look: _Pass, job: JobRecord) -> bool:
    if not job.array or not job.array.throttle:
        return False
    # An element that is ending still has its nodes, but the next one may start.
    running = sum(1 for other in look.model.elements(job.array.id) if other.shares and not other.completing)
    return running + look.started.get(job.array.id, 0) >= job.array.throttle


def _allowed(look: _Pass, job: JobRecord, partition: Partition) -> list[FreeNode]:
    """The nodes on which the job may start now: usable, of its partition, and not reserved for an earlier job."""
    end = look.now + _limit_s(look.model, job)
    allowed = []
    for name in partition.nodes:
        if name in job.desc.exclude or not look.model.nodes[name].usable:
            continue
        if name in look.reserved and end > look.reserved[name][0]:
            continue
        allowed.append(look.free[name])
    return allowed


def _limit_s(model: Model, job: JobRecord) -> float:
    minutes = job.desc.minutes if job.desc.minutes is not None else model.partitions[job.desc.partition].max_minutes
    return minutes * model.settings.minute_s if minutes else FOREVER


def _wait_for_nodes(look: _Pass, job: JobRecord, partition: Partition) -> None:
    """Decide why the job waits, reserve nodes for the moment when they are free, and preempt whom it may preempt."""
    usable = [name for name in partition.nodes if look.model.nodes[name].usable and name not in job.desc.exclude]
    unusable = [name for name in partition.nodes if not look.model.nodes[name].usable]
    missing = [name for name in job.desc.nodelist if name in unusable]
    everything = all_free(look.model)
    if missing:
        look.decisions.append(KeepPending(job.id, f"ReqNodeNotAvail, UnavailableNodes:{compress(missing)}"))
        return
    if not place(job.desc, [everything[name] for name in usable]):
        look.decisions.append(KeepPending(job.id, RESERVED))
        return
    kept_by_higher = any(name in look.reserved and look.reserved[name][1] > partition.tier for name in usable)
    reason = RESERVED if kept_by_higher else "Priority" if partition.name in look.blocked else "Resources"
    look.blocked.add(partition.name)
    victims = _victims(look, job, partition)
    for victim in victims:
        look.victims.add(victim.id)
        if victim.preempt_time is None:
            look.decisions.append(PreemptJob(victim.id))
    end, nodes = _reserve(look, job, partition, victims)
    soon = end is not None and end < look.now + FOREVER / 2
    look.decisions.append(KeepPending(job.id, reason, end if soon else None, nodes if soon else ()))


def _preemptable(look: _Pass, partition: Partition, victim: JobRecord) -> bool:
    other = look.model.partitions[victim.desc.partition]
    return victim.running and other.preempt != "OFF" and other.tier < partition.tier


def _victims(look: _Pass, job: JobRecord, partition: Partition) -> list[JobRecord]:
    """The running jobs to preempt so that this one can start; [] if that does not help or nodes will soon be free."""
    candidates = [j for j in look.model.holding() if _preemptable(look, partition, j) and j.id not in look.victims]
    # Jobs that are being preempted already come first: if they are enough, no other is preempted.
    candidates.sort(key=lambda j: (j.preempt_time is None, look.model.partitions[j.desc.partition].tier, j.priority))
    leaving = [j for j in look.model.holding() if j.completing]
    free = {name: look.free[name] for name in partition.nodes}
    for gone in leaving:
        _release(look, free, gone)
    if _would_fit(look, job, partition, free):
        return []
    taken: list[JobRecord] = []
    for victim in candidates:
        _release(look, free, victim)
        taken.append(victim)
        if _would_fit(look, job, partition, free):
            return _spare(look, job, partition, leaving, taken)
    return []


def _spare(
    look: _Pass, job: JobRecord, partition: Partition, leaving: list[JobRecord], taken: list[JobRecord]
) -> list[JobRecord]:
    """The victims without those that are not in the way after all."""
    for victim in list(taken):
        rest = [other for other in taken if other is not victim]
        free = {name: look.free[name] for name in partition.nodes}
        for gone in [*leaving, *rest]:
            _release(look, free, gone)
        if victim.preempt_time is None and _would_fit(look, job, partition, free):
            taken = rest
    return taken


def _release(look: _Pass, free: dict[str, FreeNode], job: JobRecord) -> None:
    for share in job.shares:
        if share.node in free:
            free[share.node] = free[share.node].more(share)


def _would_fit(look: _Pass, job: JobRecord, partition: Partition, free: dict[str, FreeNode]) -> list[Share] | None:
    names = [n for n in partition.nodes if look.model.nodes[n].usable and n not in job.desc.exclude]
    names = [n for n in names if n not in look.reserved]
    return place(job.desc, [free[name] for name in names])


def _reserve(
    look: _Pass, job: JobRecord, partition: Partition, victims: list[JobRecord]
) -> tuple[float | None, tuple[str, ...]]:
    """Reserve the nodes that are free first as running jobs end one after the other; returns when, and which."""
    free = {name: look.free[name] for name in partition.nodes}
    ends = sorted(
        ((_end(look, other, victims), other.id, other) for other in look.model.holding()), key=lambda e: e[:2]
    )
    for end, _, other in ends:
        _release(look, free, other)
        shares = _would_fit(look, job, partition, free)
        if shares:
            for share in shares:
                look.reserved.setdefault(share.node, (end, partition.tier))
            return end, tuple(share.node for share in shares)
    return None, ()


def _end(look: _Pass, job: JobRecord, victims: list[JobRecord]) -> float:
    if job.completing or job in victims:
        return look.now
    start = job.start if job.start is not None else look.now
    return start + (job.minutes * look.model.settings.minute_s if job.minutes else FOREVER)
