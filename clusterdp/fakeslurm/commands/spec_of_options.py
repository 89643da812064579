"""From all that was asked for to a JobSpec; what each word alone means is in asking.py."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from clusterdp.fakeslurm.commands.option_values import BAD
from clusterdp.fakeslurm.commands.options import IDLE
from clusterdp.fakeslurm.commands.parsed_options import Asked
from clusterdp.fakeslurm.core import times
from clusterdp.fakeslurm.core.error_texts import INVALID_GRES, Refusal
from clusterdp.fakeslurm.core.job_spec import JobSpec
from clusterdp.slurm.hostlist import expand

Warn = Callable[[str], None]


def job_spec(asked: Asked, folder: str, partition: str, warn: Warn, now: float) -> JobSpec:
    """`now`: the cluster's time. Raises Refusal for what cannot be read, ControllerError for what is refused."""
    spec = JobSpec(name=asked.get("job-name") or "", partition=partition, folder=folder)
    _size(asked, spec, folder, warn)
    _gpus(asked, spec)
    _place(asked, spec)
    _life(asked, spec, warn, now)
    spec.distribution = asked.get("distribution")
    spec.output, spec.error, spec.input = asked.get("output"), asked.get("error"), asked.get("input")
    spec.open_mode = _open_mode(asked)
    spec.shown = {name: value or "yes" for name, value in asked.values.items() if name in IDLE}
    return spec


def _size(asked: Asked, spec: JobSpec, folder: str, warn: Warn) -> None:
    nodes, tasks, per_node = asked.nodes(), asked.number("ntasks"), asked.number("ntasks-per-node", 0)
    if nodes and tasks and tasks < nodes[0]:
        warn(f"{asked.command}: Warning: can't run {tasks} processes on {nodes[0]} nodes, setting nnodes to {tasks}")
        nodes = (tasks, tasks)
    nodelist = asked.hosts("nodelist") or _node_file(asked, folder)
    if nodes and nodelist and nodes[1] is not None and len(nodelist) > nodes[1]:
        raise Refusal(f"{asked.command}: error: invalid number of nodes (-N {len(nodelist)}-{nodes[1]})")
    if per_node and tasks is None:
        tasks = (nodes[0] if nodes else len(nodelist) or 1) * per_node
    if nodes:
        spec.min_nodes, spec.max_nodes, spec.nodes_asked = nodes[0], nodes[1], True
    elif nodelist:
        spec.min_nodes = len(nodelist)
    if "use-min-nodes" in asked and spec.max_nodes is not None:
        spec.max_nodes = spec.min_nodes
    spec.tasks, spec.tasks_per_node = tasks, per_node or None
    spec.cpus_per_task, spec.min_cpus = asked.number("cpus-per-task"), asked.number("mincpus")
    spec.nodelist, spec.exclude = nodelist, asked.hosts("exclude")
    # 0 is what a job has that asks for none.
    spec.mem_per_node, spec.mem_per_cpu = asked.megabytes("mem") or None, asked.megabytes("mem-per-cpu") or None
    spec.minutes, spec.overcommit = asked.minutes(), "overcommit" in asked


def _gpus(asked: Asked, spec: JobSpec) -> None:
    spec.gpus = gpus = asked.gpus()
    spec.cpus_per_gpu, per_gpu = asked.number("cpus-per-gpu"), asked.number("ntasks-per-gpu")
    if gpus.per_job and gpus.per_node and not spec.nodes_asked:
        spec.min_nodes = -(-gpus.per_job // gpus.per_node)
    if per_gpu and not gpus and not spec.nodes_asked and spec.tasks is None:
        text = "gres_job_state_validate: --ntasks-per-tres needs either a GRES GPU specification or a node/ntask"
        raise _no_gres(asked, f"{text} specification")
    if "gpus-per-socket" in asked:
        raise _no_gres(asked, "--gpus-per-socket option requires --sockets-per-node specification")
    spec.mem_per_gpu = asked.megabytes("mem-per-gpu")
    if spec.mem_per_gpu is not None and not gpus:
        raise _no_gres(asked, f"Requested mem_per_tres=gres:gpu:{spec.mem_per_gpu} but did not request any GPU.")
    if spec.tasks is None and gpus.per_job and (gpus.per_task or per_gpu):
        spec.tasks = gpus.per_job // gpus.per_task if gpus.per_task else gpus.per_job * (per_gpu or 1)
    elif spec.tasks is None and gpus.per_node and per_gpu:
        spec.tasks = gpus.per_node * per_gpu * spec.min_nodes
    spec.gpus_option, spec.gpus_per_node_option = asked.get("gpus"), asked.get("gpus-per-node")
    spec.gpus_per_task_option = asked.get("gpus-per-task")


def _no_gres(asked: Asked, why: str) -> Refusal:
    return Refusal(f"{asked.command}: error: {why}\n{asked.command}: error: {INVALID_GRES}", 1)


def _place(asked: Asked, spec: JobSpec) -> None:
    spec.exclusive = asked.exclusive()
    spec.features, spec.prefer = asked.get("constraint"), asked.get("prefer")
    spec.reservation, spec.licenses = asked.get("reservation"), asked.get("licenses")
    spec.batch_features, spec.hint = asked.get("batch"), asked.get("hint")


def _node_file(asked: Asked, folder: str) -> list[str]:
    name = asked.get("nodefile")
    if not name:
        return []
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return [host for line in file for host in expand(line.strip())]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        text = f"{asked.command}: error: slurm_allocate_resources error opening file {name}, {why}"
        raise Refusal(f"{text}\n{asked.command}: error: Invalid --nodefile node file", BAD) from None


def _life(asked: Asked, spec: JobSpec, warn: Warn, now: float) -> None:
    """When it may start, and how it may end."""
    spec.dependency = asked.get("dependency") or None
    spec.kill_on_invalid_dep = (asked.get("kill-on-invalid-dep") or "").lower() in ("y", "yes")
    spec.begin = times.moment(asked.get("begin") or "now", now) if "begin" in asked else None
    spec.deadline = times.moment(asked.get("deadline") or "now", now) if "deadline" in asked else None
    for name in ("thread-spec", "core-spec"):
        if name in asked:
            word = "--thread-spec" if name == "thread-spec" else "-S"
            why = "since it's not allowed by configuration (AllowSpecResourcesUsage = No)"
            warn(f"{asked.command}: error: Ignoring {word} {why}")
    spec.hold = "hold" in asked
    nice = asked.get("nice")
    if nice is not None:
        spec.nice = int(nice or 100) if re.fullmatch(r"-?\d*", nice) else 0
    priority = asked.get("priority")
    spec.priority = int(priority) if priority and priority.isdigit() else None
    spec.requeue = "no-requeue" not in asked
    spec.no_kill = "no-kill" in asked and asked.get("no-kill") != "off"
    warning = asked.warning_signal()
    if warning:
        spec.signal, spec.signal_s, spec.signal_batch = warning
    spec.comment = asked.get("comment")
    spec.qos = asked.get("qos") or "normal"


def _open_mode(asked: Asked) -> str | None:
    mode = asked.get("open-mode")
    if mode is None:
        return None
    if mode[:1].lower() not in ("a", "t"):
        raise asked.invalid("open-mode")
    return "append" if mode[0].lower() == "a" else "truncate"
