"""Yields findings about whether the run survives: how its partition preempts jobs, whether a save has enough time, and
whether the job is requeued."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.hostlist import hosts_of
from clusterdp.slurm.quantities import seconds_of
from clusterdp.wording import duration

LITTLE_S = 1800.0  # a run may lose this many seconds of work without a warning


@dataclass(frozen=True)
class Preemption:
    """How a job is preempted."""

    mode: str  # Slurm's PreemptMode: REQUEUE, CANCEL or SUSPEND
    grace_s: float  # seconds between TERM and the preemption
    of: str  # the partition or QOS that defines the preemption
    key: str = "resources.partition"  # the config key that names the partition or QOS

    @property
    def another(self) -> str:
        return f"name another {'QOS' if self.key == 'resources.qos' else 'partition'}"

    def in_words(self) -> str:
        grace = f"a grace time of {duration(self.grace_s)}" if self.grace_s else "no grace time"
        return f"jobs in {self.of} can be preempted: {self.mode}, {grace}"


def preemption_of(subject: Subject, cluster: ClusterFacts) -> Preemption | None:
    """Returns the worst form of preemption in the job's partitions; None if jobs there are never preempted, or if the
    form is unknown."""
    kind = cluster.settings.get("PreemptType", "preempt/none")
    everywhere = cluster.settings.get("PreemptMode", "OFF")
    if kind == "preempt/qos":
        return _by_qos(subject, cluster, everywhere)
    if kind != "preempt/partition_prio":
        return None
    found = []
    for name in cluster.asked(subject.config.resources.partition):
        limits = cluster.partitions.get(name, {})
        mode = _mode(limits.get("PreemptMode", "OFF"))
        if mode and any(_wins(other, limits) for other in cluster.partitions.values()):
            found.append(Preemption(mode, seconds_of(f"{limits.get('GraceTime', '0')} sec") or 0.0, name))
    return min(found, key=lambda each: ("CANCEL REQUEUE SUSPEND".split().index(each.mode), each.grace_s), default=None)


def _wins(other: Mapping[str, str], limits: Mapping[str, str]) -> bool:
    """Returns whether jobs of the other partition may preempt jobs of this partition."""
    if _tier(other) <= _tier(limits):
        return False
    theirs, ours = hosts_of(other.get("Nodes", "")), hosts_of(limits.get("Nodes", ""))
    return not theirs or not ours or not theirs.isdisjoint(ours)


def _tier(limits: Mapping[str, str]) -> int:
    said = limits.get("PriorityTier", "")
    return int(said) if said.isdecimal() else 1


def _mode(said: str) -> str:
    """Returns the mode of preemption, such as SUSPEND for `GANG,SUSPEND`; empty for OFF."""
    return next((mode for mode in ("REQUEUE", "CANCEL", "SUSPEND") if mode in said.upper()), "")


def _by_qos(subject: Subject, cluster: ClusterFacts, everywhere: str) -> Preemption | None:
    resources = subject.config.resources
    name = cluster.job_qos(resources, next(iter(cluster.asked(resources.partition)), ""))
    if not name or not any(name in limits.get("Preempt", "").split(",") for limits in cluster.qos.values()):
        return None
    limits = cluster.qos.get(name, {})
    own = limits.get("PreemptMode", "cluster")
    mode = _mode(everywhere if own in ("cluster", "") else own)
    grace_s = seconds_of(limits.get("GraceTime", "")) or 0.0
    return Preemption(mode, grace_s, f"the QOS {name}", "resources.qos") if mode else None


def survival_findings(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    if preemption := preemption_of(subject, cluster):
        yield from _of_mode(subject, cluster, preemption)
        yield from _of_save(subject, cluster, preemption)
    yield from _of_requeue(subject, cluster)
    yield from _of_expedite(subject, cluster)
    yield from _of_interval(subject, cluster)
    yield from _of_chain(subject, cluster)


def _of_mode(subject: Subject, cluster: ClusterFacts, preemption: Preemption) -> Iterator[Finding]:
    key, what = preemption.key, preemption.in_words()
    restart = subject.config.restart
    if preemption.mode == "CANCEL" and not preemption.grace_s:
        why = f"it gets TERM, KILL after {duration(cluster.kill_wait_s)}, and is not requeued: the run is over"
        yield Finding("warning", key, what, why, f"Go on with `clusterdp resume RUN`, or {preemption.another}.")
    elif preemption.mode == "CANCEL" and restart.requeue:
        does = "submits it again" if restart.how == "resubmit" else "does"
        why = f"Slurm does not requeue it. The job's script {does}, if the ranks have saved and ended in the grace time"
        yield Finding("hint", key, what, why, "Look at `clusterdp status RUN` after a preemption.")
    elif preemption.mode == "SUSPEND":
        why = "it is stopped where it is and keeps its memory: no signal, no save, and its connections may break"
        yield Finding("hint", key, what, why, "Nothing, if train.timeout_s is longer than such a pause.")
    elif not restart.requeue:
        why = "with restart.requeue: false the run ends at its first preemption, until `clusterdp resume RUN`"
        yield Finding("warning", "restart.requeue", what, why, f"Leave restart.requeue out, or {preemption.another}.")


def _of_save(subject: Subject, cluster: ClusterFacts, preemption: Preemption) -> Iterator[Finding]:
    """Yields a finding if a save does not fit between TERM and KILL, judged by the last run with this name."""
    last = subject.last
    if subject.spec.kind != "entry" or preemption.mode == "SUSPEND" or last is None or last.save_s is None:
        return
    time_s = preemption.grace_s or cluster.kill_wait_s
    if last.save_s > time_s:
        which = "the grace time" if preemption.grace_s else "KillWait: there is no grace time"
        has = f"a preempted job has {duration(time_s)} ({which})"
        what = f"a save took {duration(last.save_s)} in {last.path.name}; {has}"
        every = subject.config.checkpoint.every_s
        lost = f"up to {duration(every)} of work is" if every else "all since the last checkpoint is"
        yield Finding("warning", "checkpoint.every_s", what, f"{lost} lost at each preemption", "Save more often.")


def _of_requeue(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    restart, template = subject.config.restart, subject.config.launch.template
    needed = cluster.settings.get("JobRequeue") == "0" and restart.requeue and restart.how == "requeue"
    if needed and template and "#SBATCH --requeue" not in subject.script:
        why = "JobRequeue is 0 on this cluster: no job is requeued that does not say it"
        what = "has no `#SBATCH --requeue`"
        yield Finding("error", "launch.template", what, why, "Keep the loop over `directives` in the template.")


def requeue_note(subject: Subject, cluster: ClusterFacts) -> str:
    """Returns a note about the time that each restart costs on this cluster; empty if the run is not requeued, or the
    settings are unknown."""
    restart = subject.config.restart
    if not (restart.requeue and restart.how == "requeue" and cluster.settings):
        return ""
    wait_s, setting = cluster.requeue_wait_s
    return f"Each requeue waits {duration(wait_s)} here before the job may start again ({setting})."


def _of_expedite(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields a finding for the directive --requeue=expedite, which only a user's template can contain."""
    enabled = "enable_expedited_requeue" in cluster.settings.get("SlurmctldParameters", "")
    if enabled and re.search(r"^#SBATCH\s+--requeue=expedite", subject.script, re.M):
        what = "--requeue=expedite: a job that does not end with 0 is requeued and held, unless an Epilog has failed"
        why = "enable_expedited_requeue is set here: the run waits as JobHeldUser for `scontrol release`"
        remedy = "Write #SBATCH --requeue: clusterdp requeues by itself what failed."
        yield Finding("warning", "launch.template", what, why, remedy)


def _of_interval(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields a finding for attempts that are shorter than the save interval: a crash then loses all steps of the
    attempt."""
    checkpoint, key = subject.config.checkpoint, "checkpoint.every_s"
    if subject.spec.kind != "entry":
        return
    if checkpoint.every_s is None and checkpoint.every_steps is None:
        what = "no checkpoint is saved while the training goes on, only at a stop"
        yield Finding("warning", key, what, "a crash or a lost node loses the whole attempt", "Set every_s, e.g. 600.")
        return
    limits = [seconds_of(cluster.partitions.get(name, {}).get("MaxTime", ""))
              for name in cluster.asked(subject.config.resources.partition)]  # fmt: skip
    time_s = min((each for each in (subject.time_s, *limits) if each is not None), default=None)
    if time_s is None or checkpoint.every_s is None or checkpoint.every_steps or time_s >= checkpoint.every_s:
        return
    if time_s >= LITTLE_S or key in subject.sources:
        what = f"a checkpoint every {duration(checkpoint.every_s)}, and an attempt lasts {duration(time_s)} at most"
        why = "each attempt saves at its end alone: a crash or a lost node loses all of it"
        yield Finding("warning", key, what, why, f"Write {max(1, round(time_s / 4))} or less.")


def _of_chain(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    if not subject.config.restart.chain or "multifactor" not in cluster.settings.get("PriorityType", ""):
        return
    if "ACCRUE_ALWAYS" not in cluster.settings.get("PriorityFlags", ""):
        what = "the next job of the chain gains no priority by age while it waits for this one"
        why = "PriorityFlags has no ACCRUE_ALWAYS here: it queues from the beginning when this one has ended"
        yield Finding("hint", "restart.chain", what, why, "Leave chain out: it gains little here.")
