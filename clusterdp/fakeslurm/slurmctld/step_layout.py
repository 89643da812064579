"""Selects a step's nodes from the job's nodes, and the number of tasks on each node.

Also has the errors that srun prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core import error_texts
from ..core.job_environ import deal, of_distribution
from ..core.model import BATCH, JobRecord, Share, Step
from ..core.release import Release

UNLIMITED = 1 << 30
GRES_TOO_FEW = "Insufficient GRES available in allocation"
GRES_MISMATCH = "Invalid Trackable RESource (TRES) specification"


class StepBusy(Exception):
    """Raised if a step must wait, because other steps are using the job's resources."""


class StepRefused(Exception):
    """Raised if slurmctld refuses a step. srun prints `first`, then `srun: error: Unable to create step for job N: `
    and `why`."""

    def __init__(self, why: str, first: str = ""):
        super().__init__(why)
        self.first = f"srun: error: {first}\n" if first else ""


class StepLost(StepRefused):
    """Raised if a step is refused after it got a number. The next step then gets the next number."""


class StepMistake(Exception):
    """An error that srun itself finds. The exception's text is the complete line that srun prints."""


@dataclass
class StepRequest:
    name: str
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    by_cpus: bool = False  # whether the number of tasks, if not given, follows from cpus_per_task: as many as fit
    nodelist: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)  # the node of each task, with --distribution=arbitrary
    relative: int | None = None
    exact: bool = False
    inherited: frozenset[str] = frozenset()  # options that the job set, not srun's command line
    overlap: bool = False
    no_kill: bool = False
    overcommit: bool = False
    distribution: str | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    gpus: int | None = None
    gpu_kind: str = ""
    gpu_bind: str | None = None
    cpus_per_gpu: int = 0
    no_gres: bool = False
    minutes: int | None = None
    pid: int = 0
    submit_line: str = ""
    gpu_options: dict[str, str] = field(default_factory=dict)  # values that scontrol show step prints

    @property
    def asks_gpus(self) -> bool:
        """Whether the step asks for GPUs. A step that asks gets GPUs even if the job asked for none, because with
        --exclusive, the job has all GPUs of its nodes.
        """
        return bool(self.gpus_per_node or self.gpus_per_task or self.gpus)


def without_lost_nodes(request: StepRequest, job: JobRecord) -> list[str]:
    """Sets the step's number of nodes if the job's script has a larger one from before the loss of a node. Returns
    warnings."""
    held = len(job.shares)
    if not job.running or "nodes" not in request.inherited or not request.nodes or request.nodes <= held:
        return []
    conflict = f"conflicts with allocated node count ({request.nodes} != {held})."
    request.nodes, request.tasks_per_node = held, None
    return [f"srun: error: SLURM_JOB_NUM_NODES environment variable {conflict}"]


def settle(request: StepRequest, cpus: Sequence[int], release: Release) -> list[str]:
    """Sets the step's numbers of tasks and nodes, if not given, from the job's CPUs on each node. Returns warnings."""
    warnings = []
    nodes, asked = request.nodes or len(cpus), request.tasks
    if release.tasks_follow_nodes and request.tasks_per_node and request.inherited == {"ntasks"}:
        asked = None
    request.by_cpus = request.by_cpus and asked is None and not request.tasks_per_node
    if request.by_cpus:
        asked = sum(max(each // request.cpus_per_task, 1) for each in cpus[:nodes])
    tasks = request.tasks = nodes * (request.tasks_per_node or 1) if asked is None else asked
    said = f"srun: {release.warning}: "
    if tasks < nodes:
        if request.nodes:
            warnings.append(f"{said}can't run {tasks} processes on {nodes} nodes, setting nnodes to {tasks}")
        nodes = tasks
    per_node = request.tasks_per_node
    if per_node and asked is not None and _contradict(per_node, tasks, nodes, release):
        if tasks > per_node:
            most = "maximum number" if release.tasks_follow_nodes else "number"
            warnings.append(
                f"{said}can't honor --ntasks-per-node set to {per_node} which doesn't match the requested "
                f"tasks {tasks} with the {most} of requested nodes {nodes}. Ignoring --ntasks-per-node."
            )
        request.tasks_per_node = None
    request.nodes = nodes
    return warnings


def _contradict(per_node: int, tasks: int, nodes: int, release: Release) -> bool:
    """Whether srun ignores --ntasks-per-node, because it contradicts the numbers of tasks and nodes."""
    return tasks > nodes * per_node if release.tasks_follow_nodes else per_node != tasks // nodes


def check(request: StepRequest, job: JobRecord, release: Release) -> None:
    """Raises StepRefused or StepMistake if the job can never fulfil the request for a step."""
    assert request.nodes
    assert request.tasks
    held = [share.node for share in job.shares]
    if request.nodes > len(held):
        raise StepMistake(f"srun: error: Only allocated {len(held)} nodes asked for {request.nodes}")
    if request.relative is not None and request.relative + request.nodes > len(held):
        raise StepMistake(
            "srun: error: --relative and --nodes option incompatible with count of allocated nodes "
            f"({request.relative}+{request.nodes}>{len(held)})"
        )
    if not set(request.nodelist) <= set(held):
        raise StepRefused(error_texts.NODE_CONFIG)
    candidates = _candidates(request, job)
    if len(candidates) < request.nodes:
        raise StepRefused(error_texts.NODE_CONFIG)
    most = sorted((share.cpus for share in candidates), reverse=True)[: request.nodes]
    room = [cpus // request.cpus_per_task for cpus in most]
    if not request.overcommit and (request.tasks > sum(room) or min(room) < 1):
        raise StepRefused(error_texts.TOO_MANY_CPUS)
    _check_gpus(request, job, candidates, release)


def _check_gpus(request: StepRequest, job: JobRecord, candidates: list[Share], release: Release) -> None:
    if request.no_gres:
        if "TresPerNode" in request.gpu_options and not release.gres_none_always:
            raise StepRefused(GRES_MISMATCH)
        return
    assert request.nodes
    if request.gpu_kind and request.gpu_kind != job.desc.gpus.kind:
        raise StepRefused(error_texts.INVALID_GRES)
    held = sorted((len(share.gpus) for share in candidates), reverse=True)[: request.nodes]
    asked, of_job = request.gpus_per_task or 0, job.desc.gpus.per_task
    if of_job and asked > (of_job if release.limits_gpus_per_task else max(held)):
        text = f"Step requested gres_per_task=gpu:{asked} is more than the job's gres_per_task=gpu:{of_job}"
        raise StepRefused(error_texts.INVALID_GRES, text if release.limits_gpus_per_task else "")
    if (request.gpus or 0) > sum(held):
        # srun prints no reason if the job has enough GPUs, but not on the step's nodes.
        all_held = sum(len(share.gpus) for share in job.shares)
        told = (of_job or job.desc.gpus.per_job) and (request.gpus or 0) > all_held
        text = f"Step requested gres=gpu:{request.gpus} is more than the job's gres=gpu:{all_held}" if told else ""
        raise StepRefused(error_texts.INVALID_GRES, text)
    wanted, of_node = request.gpus_per_node or 0, job.desc.gpus.per_node
    if any(wanted > count for count in held):
        text = f"Step requested gres_per_node=gpu:{wanted} is more than the job's gres_per_node=gpu:{of_node}"
        raise StepRefused(error_texts.INVALID_GRES, text if of_node else "")
    if asked * (request.tasks or 0) > sum(held):
        raise StepLost(GRES_TOO_FEW)


def _candidates(request: StepRequest, job: JobRecord) -> list[Share]:
    shares = [share for share in job.shares if share.node not in request.exclude]
    if request.relative is not None:
        shares = job.shares[request.relative :]
    if request.nodelist:
        named = [share for share in shares if share.node in request.nodelist]
        others = [share for share in shares if share.node not in request.nodelist]
        shares = [*named, *others] if len(named) < (request.nodes or 1) else named
    return shares


def layout(request: StepRequest, job: JobRecord, step_id: str, now: float, release: Release) -> Step:
    """Returns the step with its nodes and tasks. Raises StepBusy if the step must wait for other steps."""
    assert request.nodes
    assert request.tasks
    candidates, used = _candidates(request, job), _used(job)
    free = {share.node: share.cpus - used.get(share.node, 0) for share in candidates}
    if request.overlap:
        free = {share.node: share.cpus for share in candidates}
    gpus = _free_gpus(request, job)
    candidates = [share for share in candidates if len(gpus[share.node]) >= _gpus_wanted(request, job, share, 1)]
    chosen = _chosen(request, job, candidates, free)
    room = [free[share.node] // request.cpus_per_task for share in chosen]
    if not request.overcommit and sum(room) < request.tasks:
        raise StepBusy
    room = [max(min(each, request.tasks_per_node or each), 1) for each in room]
    size = plane(request.distribution)
    planes = 1 < size < UNLIMITED
    counts = _in_planes(request.tasks, room, size) if planes else deal(request.tasks, room, cyclic=size == 1)
    if request.hosts:
        counts = [request.hosts.count(share.node) for share in chosen]
    given = _gpus(request, job, chosen, counts, gpus)
    step = Step(
        id=step_id,
        name=request.name,
        nodes=[share.node for share in chosen],
        tasks_per_node=counts,
        cpus=_cpus(request, chosen, counts, given),
        gpus=given,
        start=now,
        restart=job.restarts,
        overlap=request.overlap,
        no_kill=request.no_kill,
        minutes=request.minutes,
        hosts=request.hosts,
        host_pid=request.pid,
        submit_line=request.submit_line,
    )
    one_each = max(counts) <= 1 and not (request.by_cpus and release.tasks_by_cpus_are_block)
    asked = of_distribution(request.distribution).get("SLURM_DISTRIBUTION")
    step.distribution = "arbitrary" if request.hosts else asked or ("cyclic" if one_each else "block")
    _say_tres(step, request, job, release)
    return step


def plane(distribution: str | None) -> int:
    """Returns how many tasks in a row a node gets before the next node gets tasks."""
    name, _, size = (distribution or "").partition("=")
    return int(size) if size else 1 if name.startswith("cyclic") else UNLIMITED


def _in_planes(tasks: int, room: Sequence[int], size: int) -> list[int]:
    counts = [0] * len(room)
    while tasks:
        left = tasks
        for i, most in enumerate(room):
            more = max(min(size, most - counts[i], tasks), 0)
            counts[i] += more
            tasks -= more
        if tasks == left:  # more tasks than CPUs (--overcommit)
            room = [most + size for most in room]
    return counts


def _chosen(request: StepRequest, job: JobRecord, candidates: Sequence[Share], free: Mapping[str, int]) -> list[Share]:
    """Returns the step's nodes, in the job's order. `free`: free CPUs by node. Raises StepBusy if too few nodes are
    free."""
    order = {share.node: i for i, share in enumerate(job.shares)}
    needed = {share.node: request.cpus_per_task if request.exact else share.cpus for share in candidates}
    ready = [share for share in candidates if free[share.node] >= needed[share.node]]
    if not request.exact:
        ready.sort(key=lambda share: order[share.node])
    elif request.relative is None and not request.nodelist:
        ready.sort(key=lambda share: (-free[share.node], order[share.node]))
    if len(ready) < (request.nodes or 0):
        raise StepBusy
    return sorted(ready[: request.nodes], key=lambda share: order[share.node])


def _cpus(
    request: StepRequest, chosen: Sequence[Share], counts: Sequence[int], gpus: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Returns the step's number of CPUs by node: all CPUs of the job, or with --exact what its tasks or GPUs need."""
    if not request.exact:
        return {share.node: share.cpus for share in chosen}
    for_gpus = {node: len(numbers) * request.cpus_per_gpu for node, numbers in gpus.items()}
    return {
        share.node: min(max(count * request.cpus_per_task, for_gpus[share.node]), share.cpus)
        for share, count in zip(chosen, counts, strict=True)
    }


def _say_tres(step: Step, request: StepRequest, job: JobRecord, release: Release) -> None:
    """Stores the requested TRES that `scontrol show step` prints."""
    step.tres_per_node = request.gpu_options.get("TresPerNode", "")
    if step.tres_per_node or request.gpus_per_task:
        step.cpus_per_step = f"cpu:{step.tasks * request.cpus_per_task}"
    words = [f"cpu={job.desc.cpus_per_task}"] if release.tres_per_task and job.desc.cpus_per_task else []
    if words and step.tres_per_node:
        words.append(f"cpu:{request.cpus_per_task}")
    if request.gpus_per_task:
        step.tres_bind = f"{release.gpu_in_bind}:per_task:{request.gpus_per_task}"
        words.append(f"{release.gpu_of_task}{request.gpus_per_task}")
    step.tres_per_task = ",".join(words)


def _used(job: JobRecord) -> dict[str, int]:
    """Returns the number of CPUs that live steps use, by node. The batch script's CPUs do not count."""
    used: dict[str, int] = {}
    for step in job.steps:
        if step.live and step.id != BATCH and not step.overlap:
            for node, cpus in step.cpus.items():
                used[node] = used.get(node, 0) + cpus
    return used


def _free_gpus(request: StepRequest, job: JobRecord) -> dict[str, list[int]]:
    """Returns the GPUs that no other step uses, by node.

    A step with --overlap and other steps do not exclude each other.
    """
    steps = [step for step in job.steps if step.live and step.id != BATCH and not step.overlap and not request.overlap]
    used = {(node, gpu) for step in steps for node, gpus in step.gpus.items() for gpu in gpus}
    return {share.node: [gpu for gpu in share.gpus if (share.node, gpu) not in used] for share in job.shares}


def _gpus_wanted(request: StepRequest, job: JobRecord, share: Share, tasks: int) -> int:
    """Returns the number of GPUs that the step gets on a node with this number of tasks: all GPUs of the job, unless
    the step asks for GPUs or the job asked for GPUs per task.
    """
    if request.no_gres or not (job.desc.gpus or request.asks_gpus):
        return 0
    if request.gpus_per_node is not None:
        return min(request.gpus_per_node, len(share.gpus))
    if request.gpus_per_task:
        return min(tasks * request.gpus_per_task, len(share.gpus))
    if request.gpus is None and job.desc.gpus.per_task:
        return min(tasks * job.desc.gpus.per_task, len(share.gpus))
    return len(share.gpus) if request.gpus is None else min(request.gpus, len(share.gpus))


def _gpus(
    request: StepRequest, job: JobRecord, chosen: list[Share], counts: list[int], free: dict[str, list[int]]
) -> dict[str, list[int]]:
    found, left = {}, request.gpus
    for others, share, count in zip(reversed(range(len(chosen))), chosen, counts, strict=True):
        wanted = _gpus_wanted(request, job, share, count)
        if left is not None:
            wanted = min(wanted, max(left - others, min(left, 1)))  # at least one GPU is left for each later node
            left -= wanted
        if len(free[share.node]) < wanted:
            raise StepBusy
        found[share.node] = free[share.node][:wanted]
    return found
