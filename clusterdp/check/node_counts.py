"""Checks of resources.nodes and train.global_batch_size: with how many nodes a run may train, and how busy they are."""

from __future__ import annotations

from collections.abc import Iterator

from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.cluster.nodes import misfits
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.wording import counted, ranges, shares_of

KEY = "resources.nodes"
LISTS_SINCE = (23, 2)  # release of Slurm
BY_TASKS = (22, 5)  # release whose ranges end at the tasks of their least nodes
MOST_SHOWN = 12  # numbers of nodes


def batch_findings(subject: Subject) -> Iterator[Finding]:
    """Yields findings about train.global_batch_size, whose micro-batches probably have the size of a param."""
    key, samples, ranks = "train.global_batch_size", subject.config.train.global_batch_size, subject.ranks
    if samples is None:
        return
    size = _micro_batch(subject)
    count, rest = divmod(samples, size or 1)
    uneven = [nodes for nodes, busy in _busy(subject) if busy < 1]
    if size and rest:
        why = f"a step is made of whole micro-batches, of params' {size} samples"
        yield Finding("error", key, f"{samples} is not a multiple of {size}", why, f"Write e.g. {(count + 1) * size}.")
    elif count < ranks:
        micro = f" in micro-batches of {size}" if size else ""
        what = f"{samples} samples{micro} are too few for {ranks} ranks"
        most = count // subject.spec.ranks_per_node
        fewer = f"{most} nodes at most" if subject.config.resources.is_elastic and most else "fewer ranks"
        remedy = f"Use {fewer}, or smaller micro-batches." if size else f"Use {fewer}."
        yield Finding("error", key, what, "each rank needs a micro-batch of its own", remedy)
    elif size and uneven and subject.config.resources.is_elastic:
        even = [str(nodes) for nodes, busy in _busy(subject) if busy == 1]
        worst = min(busy for _, busy in _busy(subject))
        what = f"{count} micro-batches of {size}: on {', '.join(ranges(uneven))} nodes, ranks wait for others"
        remedy = f"Equal shares: nodes: {','.join(even)}; or leave it so." if even else "Leave it so, or use others."
        yield Finding("hint", key, what, f"in the worst case they are busy for {worst:.0%} of a step", remedy)
    elif size and uneven:
        [(_, busy)] = _busy(subject)
        what = f"{count} micro-batches of {size} on {ranks} ranks: {shares_of(count, ranks)} on each"
        fits = [fewer for fewer in range(1, ranks) if count % fewer == 0]
        remedy = f"Equal shares: {fits[-1]} ranks; or leave it so."
        yield Finding("hint", key, what, f"the ranks are busy for {busy:.0%} of a step", remedy)


def range_findings(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields findings about a range or a list of numbers of nodes."""
    nodes = subject.config.resources
    if not nodes.is_elastic:
        return
    if "," in str(nodes.nodes) and (0, 0) < cluster.release < LISTS_SINCE:
        release, remedy = "{}.{:02}".format(*cluster.release), f"Write nodes: {nodes.least_nodes}-{nodes.most_nodes}"
        yield Finding("error", KEY, f"{nodes.nodes} is a list", f"Slurm {release} knows ranges only", f"{remedy}.")
    tasks = nodes.job_nodes * subject.spec.tasks_per_node
    if cluster.release == BY_TASKS and tasks < nodes.most_nodes + nodes.spare_nodes:
        what = f"{nodes.nodes} nodes, with {counted(subject.spec.tasks_per_node, 'task')} of srun on each"
        why = f"Slurm 22.05 gives no more nodes than the least ones have tasks: {tasks}"
        yield Finding("warning", KEY, what, why, "Write a larger least number, or leave it so.")
    if subject.config.train.global_batch_size is None:
        what = f"each attempt of the program may have another number of nodes: {nodes.nodes}"
        remedy = "Let it read WORLD_SIZE (or SLURM_JOB_NUM_NODES), or write one number."
        yield Finding("warning", KEY, what, "its steps may have other samples then", remedy)


def range_notes(subject: Subject, cluster: ClusterFacts) -> Iterator[str]:
    """Yields what the numbers of nodes of a range mean, and which of them could start now."""
    resources, each = subject.config.resources, subject.spec.ranks_per_node
    if (samples := subject.config.train.global_batch_size) is not None:
        least = f"{resources.least_nodes * each} to " if resources.is_elastic else ""
        yield f"A step has {samples} samples, on {least}{counted(subject.ranks, 'rank')} as on any other number."
    if not resources.is_elastic:
        return
    if shown := [f"{nodes}: {busy:.0%}" for nodes, busy in _busy(subject)]:
        more = [] if len(shown) <= MOST_SHOWN else ["...", shown[-1]]
        few = shown if not more else shown[: MOST_SHOWN - 1]
        yield f"Share of a step in which the ranks are busy, by number of nodes: {', '.join([*few, *more])}."
    starts = f"A job that waits behind others starts with {resources.least_nodes}, as soon as those are free."
    if cluster.groups:
        idle = sum(
            group.nodes
            for group in cluster.groups
            if group.partition in cluster.asked(resources.partition)[:1]
            and group.state.startswith("idle")
            and not [*misfits(subject, group, cluster)]
        )
        now = max((nodes for nodes in resources.sizes if nodes <= idle), default=0)
        would = f"the job would start on {now}" if now else f"the job waits for {resources.least_nodes}"
        starts = f"{counted(idle, 'node')} that fit {'is' if idle == 1 else 'are'} idle now: {would}. {starts}"
    yield starts


def _micro_batch(subject: Subject) -> int:
    """Returns the samples of a micro-batch, as far as params say it; else 0."""
    given = (subject.config.params.get(name) for name in ("batch_size", "micro_batch_size"))
    return next((value for value in given if type(value) is int and value > 0), 0)


def _busy(subject: Subject) -> list[tuple[int, float]]:
    """Returns each possible number of nodes, with the share of a step in which its ranks are busy on average. Empty if
    the number of micro-batches is not known, or too small."""
    samples, size = subject.config.train.global_batch_size, _micro_batch(subject)
    if samples is None or not size or samples < size * subject.ranks:
        return []
    count, each = samples // size, subject.spec.ranks_per_node
    return [(nodes, count / (nodes * each * -(-count // (nodes * each)))) for nodes in subject.config.resources.sizes]
