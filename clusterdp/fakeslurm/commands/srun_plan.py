"""From what srun was asked for to the plan of its step: where streams go, what tasks find in their environment."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.commands.parsed_options import Asked
from clusterdp.fakeslurm.core import job_environ
from clusterdp.fakeslurm.core.model import Job
from clusterdp.fakeslurm.core.step_plan import Part, StepPlan, Target, TaskPlan
from clusterdp.fakeslurm.slurmctld.step_layout import StepRequest
from clusterdp.fakeslurm.slurmctld.step_plans import letters, memory_limits, step_tasks

if TYPE_CHECKING:
    from clusterdp.fakeslurm.commands.srun import Component
    from clusterdp.fakeslurm.slurmctld.connection import Conversation
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

PORT = 40000  # in variables that name one: nobody listens there


def request_of(component: Component, pid: int) -> StepRequest:
    asked, given, program = component.asked, component.given, component.program
    nodes = asked.nodes()
    request = StepRequest(name=asked.get("job-name") if "job-name" in given else os.path.basename(program[0]), pid=pid)  # type: ignore[arg-type]
    request.nodes = nodes[0] if nodes else None
    request.tasks = asked.number("ntasks")
    request.tasks_per_node = asked.number("ntasks-per-node")
    request.cpus_per_task = asked.number("cpus-per-task") or 1
    request.nodelist, request.exclude = asked.hosts("nodelist"), asked.hosts("exclude")
    request.relative = asked.number("relative", 0)
    request.overlap, request.overcommit = "overlap" in asked, "overcommit" in asked
    exact = "cpus-per-task" in asked and not request.overcommit
    request.exact = exact or "exact" in asked or "exclusive" in asked
    request.distribution = asked.get("distribution")
    request.minutes = asked.minutes() or None if "time" in given else None
    gpus = asked.gpus()
    request.gpus_per_node, request.gpus_per_task, request.gpus = gpus.per_node, gpus.per_task, gpus.per_job
    request.cpus_per_gpu = asked.number("cpus-per-gpu") or 0
    request.no_gres = (asked.get("gres") or "").lower() == "none"
    if "gpus-per-node" in asked:
        request.gpu_options["TresPerNode"] = f"gres:gpu:{asked.get('gpus-per-node')}"
    return request


def plan_of(talk: Conversation, daemon: Daemon, components: list[Component]) -> StepPlan:
    first = components[0]
    asked, job, step = first.asked, first.job, first.step
    parts, tasks, nodes_before = list[Part](), list[TaskPlan](), 0
    for number, component in enumerate(components):
        parts.append(_part(talk, daemon, components, component))
        for task in _tasks(component):
            tasks.append(_shifted(task, number, len(tasks) - task.rank, nodes_before))
        nodes_before += len(component.step.nodes)
    return StepPlan(
        job=job.id,
        step=step.id,
        restart=job.restarts,
        name=step.name,
        nodes=tuple(node for component in components for node in component.step.nodes),
        tasks=tuple(tasks),
        parts=tuple(parts),
        umask=talk.umask,
        label=_labels(asked),
        unbuffered="unbuffered" in asked,
        quit_on_interrupt="quit-on-interrupt" in asked,
        multi_prog=bool(first.programs),
        verbose="verbose" in asked,
        kill_on_bad_exit="kill-on-bad-exit" in asked and asked.get("kill-on-bad-exit") != "0",
        memory_mb={
            node: limit for each in components for node, limit in memory_limits(daemon.controller, each.job).items()
        },
        wait_s=asked.number("wait", 0) or 0,
        kill_wait_s=daemon.controller.settings.kill_wait_s,
        socket=str(daemon.paths.socket),
        cluster=str(daemon.paths.folder),
    )


def _tasks(component: Component) -> list[TaskPlan]:
    request = component.request
    tasks = step_tasks(component.step, request.gpus_per_task, (request.distribution or "").startswith("cyclic"))
    if component.programs:
        return [replace(task, argv=component.programs[task.rank]) for task in tasks]
    return tasks


def _shifted(task: TaskPlan, part: int, ranks: int, nodes: int) -> TaskPlan:
    """A task of a later component: ranks and nodes count on."""
    if not part:
        return task
    here = task.environ
    moved = {
        "SLURM_PROCID": str(task.rank + ranks),
        "SLURM_NODEID": str(task.node_index + nodes),
        "SLURM_GTIDS": ",".join(str(int(rank) + ranks) for rank in here["SLURM_GTIDS"].split(",")),
    }
    return replace(task, rank=task.rank + ranks, part=part, environ={**here, **moved})


def _part(talk: Conversation, daemon: Daemon, components: list[Component], component: Component) -> Part:
    controller, asked, job = daemon.controller, component.asked, component.job
    leader = daemon.model.components(job)[0]
    variables = job_environ.of_srun(talk.environ, asked.get("export"))
    about_job = job_environ.of_job(leader, controller.user, daemon.shape, str(controller.conf_path()))
    alone = not job.spec.batch and not job.spec.lasts  # an srun outside of jobs
    for name, value in about_job.items():
        if name != "ENVIRONMENT" and not (alone and name in job_environ.IN_OTHERS_JOBS_ONLY):
            variables.setdefault(name, value)
    steps = [each.step for each in components]
    about_step = job_environ.of_step(job, component.step, steps, talk.umask, PORT)
    variables |= {
        name: value for name, value in about_step.items() if not (alone and name in job_environ.IN_OTHERS_JOBS_ONLY)
    }
    if job.het:
        shares = [share for each in components for share in each.job.shares]
        variables |= job_environ.of_nodes(shares) | {"SLURM_JOB_NAME": job.spec.name}
    elif job.spec.batch and job.shares and job.shares[0].gpus:
        variables.setdefault("SLURM_JOB_GPUS", ",".join(map(str, job.shares[0].gpus)))
    for name in (*job_environ.GPU_VARIABLES, "SLURM_GPUS_ON_NODE"):
        variables.pop(name, None)
    if "job-name" in asked and "SLURM_JOB_NAME" in variables and "job-name" in component.given:
        variables["SLURM_JOB_NAME"] = component.step.name
    variables |= _of_options(component)
    stdout = _target(asked.get("output"), asked, job)
    return Part(
        job=job.id,
        argv=tuple(component.program),
        environ=variables,
        folder=os.path.join(talk.cwd, asked.get("chdir") or ""),
        stdin=_input(asked.get("input")),
        stdout=stdout,
        stderr=_target(asked.get("error"), asked, job) if "error" in asked else _follows(stdout),
        patterns=letters(job, component.step.id, controller.user.name),
    )


def _of_options(component: Component) -> dict[str, str]:
    """What srun tells its tasks of its own options."""
    asked, request, found = component.asked, component.request, {}
    if _labels(asked):
        found["SLURM_LABELIO"] = "1"
    if "cpus-per-task" in asked:
        found["SLURM_CPUS_PER_TASK"] = str(request.cpus_per_task)
    if request.tasks_per_node:
        found["SLURM_NTASKS_PER_NODE"] = str(request.tasks_per_node)
    if request.overcommit:
        found["SLURM_OVERCOMMIT"] = "1"
    if not component.job.het:
        found["SLURM_NNODES"] = str(len(component.step.nodes))
    return found


def _labels(asked: Asked) -> bool:
    return "label" in asked and asked.get("label") != "0"


def _follows(stdout: Target) -> Target | None:
    """stderr goes where stdout goes, unless that is srun for all tasks."""
    return Target("srun") if stdout.kind == "srun" else None


def _target(pattern: str | None, asked: Asked, job: Job) -> Target:
    if pattern is None or pattern == "all":
        return Target("srun")
    if pattern == "none":
        return Target("null")
    if pattern.isdigit():
        return Target("one", rank=int(pattern))
    mode = asked.get("open-mode") or job.spec.open_mode or ""
    return Target("file", pattern, append=mode[:1].lower() == "a")


def _input(pattern: str | None) -> Target:
    if pattern == "none":
        return Target("null")
    if pattern is None or pattern == "all":
        return Target("srun")
    if pattern.isdigit():
        return Target("one", rank=int(pattern))
    return Target("file", pattern)
