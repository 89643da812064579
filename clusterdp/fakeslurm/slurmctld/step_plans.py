"""Makes the plan that the slurmstepd of a job's batch script or step gets."""

from __future__ import annotations

import os
import re

from ..core import job_environ, login_shells
from ..core.model import NOT_AN_ARRAY_INDEX, JobRecord, Step
from ..core.paths import Paths
from ..core.release import Release
from ..core.shape import host_name
from ..core.step_plan import ComponentPlan, StepPlan, StreamTarget, TaskPlan
from .controller import Controller

WIDEST = 10  # maximum width of a number in a file name


def letters(job: JobRecord, step: str, user: str, release: Release | None = None) -> dict[str, object]:
    """Returns the values of the letters that names of output files may have, like %j."""
    batch = step == "batch"
    index = job.array.indexes[0] if job.array and job.array.split else NOT_AN_ARRAY_INDEX
    if index == NOT_AN_ARRAY_INDEX and release and not batch:
        index = release.no_array_index
    return {
        **({"b": index % 10} if release and release.has_index_digit else {}),
        "j": job.id,
        "J": job.id if batch else f"{job.id}.{step}",
        "A": job.array.id if job.array else job.id,
        "a": index,
        "s": step,
        "x": job.desc.name,
        "u": user,
        "N": host_name(),
        "t": 0,
        "n": 0,
    }


def default_output(job: JobRecord) -> str:
    return "slurm-%A_%a.out" if job.array else "slurm-%j.out"


def batch_plan(controller: Controller, job: JobRecord, paths: Paths) -> StepPlan:
    desc, spool = job.desc, controller.spool.of(job)
    saved = (spool / "environment").read_bytes().decode("utf-8", "surrogateescape")
    variables = login_shells.variables(paths)
    variables |= dict(line.split("=", 1) for line in saved.split("\0") if "=" in line)
    if "PATH" not in variables:
        variables |= login_shells.without_path(paths)
    variables |= job_environ.of_job(job, controller.user, controller.shape, str(controller.conf_path()))
    variables |= job_environ.of_het(controller.model, job, controller.user, controller.shape)
    variables |= job_environ.of_batch(job, controller.settings.release)
    if job.het:  # a heterogeneous job has these variables only with the suffix _HET_GROUP_0
        variables = {name: value for name, value in variables.items() if name not in job_environ.OF_GROUPS_ONLY}
    append = desc.open_mode == "append"
    task = TaskPlan(0, job.nodes[0], 0, {})
    component = ComponentPlan(
        job.id,
        argv=(str(spool / "slurm_script"), *desc.arguments),
        environ=variables,
        folder=desc.folder,
        stdin=StreamTarget("file", desc.input) if desc.input else StreamTarget("null"),
        stdout=StreamTarget("file", desc.output or default_output(job), append),
        stderr=StreamTarget("file", desc.error, append) if desc.error else None,
        patterns=letters(job, "batch", controller.user.name, controller.settings.release),
    )
    return StepPlan(
        job=job.id,
        step="batch",
        restart=job.restarts,
        name="batch",
        nodes=(job.nodes[0],),
        tasks=(task,),
        components=(component,),
        umask=desc.umask,
        memory_mb=memory_limits(controller, job),
        kill_wait_s=controller.settings.kill_wait_s,
        slurm_version=controller.settings.slurm_version,
        socket=str(paths.socket),
        cluster=str(paths.folder),
        node_local=controller.settings.node_local,
        shared=controller.settings.shared,
    )


def memory_limits(controller: Controller, job: JobRecord) -> dict[str, int]:
    """Returns the memory limit in MB by node. Returns {} if the job asked for no memory, or the cluster enforces no
    limit."""
    desc = job.desc
    if not controller.settings.enforce_memory or not (desc.mem_per_node or desc.mem_per_cpu):
        return {}
    return {share.node: desc.mem_per_node or (desc.mem_per_cpu or 0) * share.cpus for share in job.shares}


def step_tasks(step: Step, gpu_bind: str | None, plane: int, release: Release) -> list[TaskPlan]:
    """Returns the plan of each task of a step. Each node gets `plane` ranks in turn, or the ranks that the file of
    hosts has for it (arbitrary)."""
    ranks: list[list[int]] = [[] for _ in step.nodes]
    if step.hosts:
        ranks = [[rank for rank, host in enumerate(step.hosts) if host == node] for node in step.nodes]
    else:
        rank, left = 0, list(step.tasks_per_node)
        while any(left):
            for i in range(len(left)):
                more = min(plane, left[i])
                ranks[i] += range(rank, rank + more)
                left[i] -= more
                rank += more
    plans = []
    for i, (node, mine) in enumerate(zip(step.nodes, ranks, strict=True)):
        on_node = step.gpus.get(node, [])
        for local, rank in enumerate(mine):
            binds = len(mine) > 1 or (release.binds_single_tasks and (gpu_bind or "").startswith("per_task"))
            seen = bound(gpu_bind, local, on_node, release) if gpu_bind and binds else on_node
            about = job_environ.of_task(step, i, rank, local, mine, seen, gpu_bind, release)
            plans.append(TaskPlan(rank, node, i, about, number=rank))
    return sorted(plans, key=lambda plan: plan.rank)


def bound(bind: str, local: int, gpus: list[int], release: Release) -> list[int]:
    """Returns the GPUs that a task sees with this value of --gpu-bind, which chooses by number or by position in
    `gpus`."""
    kind, _, value = bind.removeprefix("verbose,").partition(":")
    if kind == "closest" or not gpus:
        return gpus
    if kind == "none":
        return [] if release.bind_none_hides else gpus
    if kind == "single":
        return [gpus[local // int(value) % len(gpus)]]
    if kind == "per_task":
        return gpus[local * int(value) :][: int(value)] or gpus[:1]
    words = [part.partition("*") for part in value.split(",")]
    numbers = [int(word, 0) for word, _, times in words for _ in range(int(times or 1))]
    number = numbers[local % len(numbers)]
    return [gpu for gpu in gpus if (gpu == number if kind == "map_gpu" else number >> gpu & 1)] or gpus[:1]


def shown_path(job: JobRecord, pattern: str | None, user: str, release: Release) -> str:
    """Returns StdOut as scontrol shows it. Before 26.05, scontrol replaces fewer letters than slurmd. Older releases of
    Slurm do not replace letters with a width (%8j), and %%.
    """
    values = {**letters(job, "batch", user, release), "N": job.nodes[0] if job.nodes else "(null)"}

    def shown(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        width = min(int(match[1] or 0), WIDEST)
        value = values.get(match[2], match[0])
        return f"{value:0{width}}" if isinstance(value, int) else str(value)

    width, percent = (r"\d*", "|%%") if release.shows_widths else ("", "")
    known = f"%({width})([{release.shown_letters}]){percent}"
    return os.path.join(job.desc.folder, re.sub(known, shown, pattern or default_output(job)))
