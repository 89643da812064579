"""Makes the plan of a step from the options of srun: the targets of streams, the environment of tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import job_environ
from ...core.model import JobRecord, sluid
from ...core.release import Release
from ...core.step_plan import ComponentPlan, StepPlan, StreamTarget, TaskPlan
from ...slurmctld.step_layout import StepRequest, plane
from ...slurmctld.step_plans import letters, memory_limits, step_tasks
from ..options.parsed_options import ParsedOptions

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon
    from .srun import Component

OF_LAYOUT = {"SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE"}  # must be unset with --distribution=arbitrary
PORT = 40000  # port in variables that name a port; no process listens on the port


def request_of(component: Component, pid: int, release: Release, hosts: Sequence[str] = ()) -> StepRequest:
    """`hosts`: the node of each task, with --distribution=arbitrary."""
    options, given, program = component.options, component.given, component.program
    nodes = options.nodes()
    name = options.get("job-name") if "job-name" in given else None
    request = StepRequest(name=os.path.basename(program[0]) if name is None else name, pid=pid)
    request.nodes = nodes.least if nodes else None
    request.tasks = options.number("ntasks")
    request.tasks_per_node = options.number("ntasks-per-node")
    inherited = options.tres_per_task()
    request.cpus_per_task = options.number("cpus-per-task") or int(inherited.get("cpu", 1))
    request.by_cpus = "cpus-per-task" in options or "cpu" in inherited
    request.inherited = frozenset(name for name in ("nodes", "ntasks") if name in options and name not in given)
    request.nodelist, request.exclude = options.hosts("nodelist"), options.hosts("exclude")
    if hosts:
        request.hosts, request.nodelist = list(hosts), list(dict.fromkeys(hosts))
        request.nodes = len(request.nodelist)
    request.relative = options.number("relative", 0)
    request.no_kill = "no-kill" in given and options.get("no-kill") != "off"
    request.overlap, request.overcommit = "overlap" in options, "overcommit" in options
    exact = request.by_cpus and not request.overcommit
    request.exact = exact or "exact" in options or "exclusive" in options
    request.distribution = options.get("distribution")
    request.minutes = options.minutes() or None if "time" in given else None
    gpus = options.gpus()
    gpus.per_task = gpus.per_task or int(inherited.get("gres/gpu", 0)) or None
    request.gpus_per_node, request.gpus_per_task, request.gpus = gpus.per_node, gpus.per_task, gpus.per_job
    request.gpu_kind = gpus.kind
    per_gpu = options.number("ntasks-per-gpu")
    if per_gpu and request.tasks is None and gpus:
        request.tasks = per_gpu * (gpus.per_job or (gpus.per_node or 0) * (request.nodes or 1)) or None
    bind = options.gpu_bind() or (f"single:{per_gpu}" if per_gpu else None)
    binds = release.binds_single_tasks or given.keys() & {"gpu-bind", "tres-bind"}
    if gpus.per_task and not (bind and binds):
        bind = f"per_task:{gpus.per_task}"
    request.gpu_bind = bind
    request.cpus_per_gpu = options.number("cpus-per-gpu") or 0
    request.no_gres = (options.get("gres") or "").lower() == "none"
    if "gpus-per-node" in options:
        request.gpu_options["TresPerNode"] = f"{release.gpu_prefix}{options.get('gpus-per-node')}"
    return request


def plan_of(client: Connection, daemon: Daemon, components: list[Component]) -> StepPlan:
    first = components[0]
    options, job, step = first.options, first.job, first.step
    plans, tasks, nodes_before = list[ComponentPlan](), list[TaskPlan](), 0
    for number, component in enumerate(components):
        plans.append(_component_plan(client, daemon, components, component))
        for task in _tasks(component, daemon.shape.settings.release):
            tasks.append(_shifted(task, number, len(tasks) - task.rank, nodes_before))
        nodes_before += len(component.step.nodes)
    return StepPlan(
        job=job.id,
        step=step.id,
        restart=job.restarts,
        name=step.name,
        nodes=tuple(node for component in components for node in component.step.nodes),
        tasks=tuple(tasks),
        components=tuple(plans),
        umask=client.umask,
        label=_labels(options),
        unbuffered="unbuffered" in options,
        quit_on_interrupt="quit-on-interrupt" in options,
        kill_on_bad_exit="kill-on-bad-exit" in options and options.get("kill-on-bad-exit") != "0",
        memory_mb={
            node: limit for each in components for node, limit in memory_limits(daemon.controller, each.job).items()
        },
        wait_s=options.number("wait", 0) or 0,
        kill_wait_s=daemon.controller.settings.kill_wait_s,
        slurm_version=daemon.controller.settings.slurm_version,
        socket=str(daemon.paths.socket),
        cluster=str(daemon.paths.folder),
        node_local=daemon.controller.settings.node_local,
        shared=daemon.controller.settings.shared,
        file_traps=daemon.controller.settings.file_traps,
    )


def _tasks(component: Component, release: Release) -> list[TaskPlan]:
    request = component.request
    tasks = step_tasks(component.step, request.gpu_bind, plane(request.distribution), release)
    if component.programs:
        return [replace(task, argv=component.programs[task.rank]) for task in tasks]
    return tasks


def _shifted(task: TaskPlan, component_index: int, ranks: int, nodes: int) -> TaskPlan:
    """Returns the task's plan with its rank and node index counted over all components, not within its own."""
    if not component_index:
        return task
    here = task.environ
    moved = {
        "SLURM_PROCID": str(task.rank + ranks),
        "SLURM_NODEID": str(task.node_index + nodes),
        "SLURM_GTIDS": ",".join(str(int(rank) + ranks) for rank in here["SLURM_GTIDS"].split(",")),
    }
    return replace(task, rank=task.rank + ranks, component=component_index, environ={**here, **moved})


def _component_plan(
    client: Connection, daemon: Daemon, components: list[Component], component: Component
) -> ComponentPlan:
    controller, options, job = daemon.controller, component.options, component.job
    leader = daemon.model.components(job)[0]
    variables = job_environ.of_srun(client.environ, options.get("export"))
    variables |= job_environ.of_launchers(variables, daemon.shape.settings.release)
    about_job = job_environ.of_job(leader, controller.user, daemon.shape, str(controller.conf_path()))
    hidden = job_environ.hidden_from_own(daemon.shape.settings.release) if job.made_by_srun else job_environ.ASKED_GPUS
    if component.step.hosts:
        hidden = {*hidden, *OF_LAYOUT}
    for name, value in about_job.items():
        if name != "ENVIRONMENT" and name not in hidden:
            variables.setdefault(name, value)
    steps = [each.step for each in components]
    group = controller.user.group
    about_step = job_environ.of_step(job, component.step, steps, client.umask, PORT, daemon.shape, group)
    variables |= {name: value for name, value in about_step.items() if name not in hidden}
    if "SLURM_JOB_SLUID" in about_job:
        variables["SLURM_JOB_SLUID"] = sluid(job)  # the SLUID of this component, not of the first component
    if job.het:
        shares = [share for each in components for share in each.job.shares]
        variables |= job_environ.of_nodes(shares) | {"SLURM_JOB_NAME": job.desc.name}
    elif job.desc.batch and job.shares and job.shares[0].gpus:
        variables.setdefault("SLURM_JOB_GPUS", ",".join(map(str, job.shares[0].gpus)))
    for name in (*job_environ.GPU_VARIABLES, "SLURM_GPUS_ON_NODE"):
        variables.pop(name, None)
    if "job-name" in options and "SLURM_JOB_NAME" in variables and "job-name" in component.given:
        variables["SLURM_JOB_NAME"] = component.step.name
    inherited = variables.get("SLURM_TRES_PER_TASK", "")
    variables |= _of_options(component, daemon.shape.settings.release, inherited)
    stdout = _target(options.get("output"), options, job)
    return ComponentPlan(
        job=job.id,
        argv=tuple(component.program),
        environ=variables,
        folder=os.path.join(client.cwd, options.get("chdir") or ""),
        stdin=_input(options.get("input")),
        stdout=stdout,
        stderr=_target(options.get("error"), options, job) if "error" in options else _follows(stdout),
        patterns=letters(job, component.step.id, controller.user.name, controller.settings.release),
    )


def _of_options(component: Component, release: Release, inherited: str) -> dict[str, str]:
    """Returns the variables that a step's tasks get because of srun's options."""
    options, request, found = component.options, component.request, dict[str, str]()
    if not request.hosts:
        found |= job_environ.of_distribution(options.get("distribution"))
    if _labels(options):
        found["SLURM_LABELIO"] = "1"
    if "cpus-per-task" in options:
        found["SLURM_CPUS_PER_TASK"] = str(request.cpus_per_task)
    if release.tres_per_task:
        found |= _tres_per_task(component, inherited)
    if release.step_sets_gpus and "gpus" in options:
        found["SLURM_GPUS"] = options.get("gpus") or ""
    if request.tasks_per_node:
        found["SLURM_NTASKS_PER_NODE"] = str(request.tasks_per_node)
    if request.overcommit:
        found["SLURM_OVERCOMMIT"] = "1"
    if not component.job.het:
        found["SLURM_NNODES"] = str(len(component.step.nodes))
    return found


def _tres_per_task(component: Component, inherited: str) -> dict[str, str]:
    options, tres = component.options, _tres(inherited)
    if "cpus-per-task" in options:
        tres["cpu"] = str(component.request.cpus_per_task)
    gpus = options.gpus().per_task
    if gpus:
        tres["gres/gpu"] = str(gpus)
    found = {"SLURM_TRES_PER_TASK": ",".join(f"{name}={count}" for name, count in sorted(tres.items()))} if tres else {}
    bind = component.request.gpu_bind
    return found | ({"SLURM_TRES_BIND": f"gres/gpu:{bind}"} if bind else {})


def _tres(text: str) -> dict[str, str]:
    """Returns the parts of a text like cpu=3,gres/gpu=1 by name."""
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _labels(options: ParsedOptions) -> bool:
    return "label" in options and options.get("label") != "0"


def _follows(stdout: StreamTarget) -> StreamTarget | None:
    """Returns the target of stderr without --error: srun if stdout goes to srun, else None (same as stdout)."""
    return StreamTarget("srun") if stdout.kind == "srun" else None


def _target(pattern: str | None, options: ParsedOptions, job: JobRecord) -> StreamTarget:
    if pattern is None or pattern.lower().startswith("all"):  # also all.log
        return StreamTarget("srun")
    if pattern.lower() == "none":
        return StreamTarget("null")
    if pattern.isdigit():
        return StreamTarget("one", rank=int(pattern))
    mode = options.get("open-mode") or job.desc.open_mode or ""
    return StreamTarget("file", pattern, append=mode[:1].lower() == "a")


def _input(pattern: str | None) -> StreamTarget:
    if pattern and pattern.lower() == "none":
        return StreamTarget("null")
    if pattern is None or pattern.lower().startswith("all"):
        return StreamTarget("srun")
    if pattern.isdigit():
        return StreamTarget("one", rank=int(pattern))
    return StreamTarget("file", pattern)
