"""Makes a JobDesc from a command's options. parsed_options.py parses the value of each option."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from ...core import times
from ...core.error_texts import INVALID_GRES, Refusal
from ...core.hostlist import expand
from ...core.job_desc import JobDesc
from ...core.node_counts import NodeCounts
from ...core.release import Release
from .option_values import BAD
from .options import IDLE
from .parsed_options import ParsedOptions

BESIDE_PER_GPU = "is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
Warn = Callable[[str], None]


def job_desc(options: ParsedOptions, folder: str, partition: str, warn: Warn, now: float, release: Release) -> JobDesc:
    """Returns the JobDesc for a command's options. `now` is the time on the cluster's clock. Raises Refusal for values
    that cannot be parsed, and ControllerError for values that slurmctld refuses.
    """
    desc = JobDesc(name=options.get("job-name") or "", partition=partition, folder=folder)
    _size(options, desc, folder, warn, release)
    _gpus(options, desc, release)
    _place(options, desc)
    _life(options, desc, warn, now)
    desc.distribution = options.get("distribution")
    desc.output, desc.error, desc.input = options.get("output"), options.get("error"), options.get("input")
    desc.open_mode = _open_mode(options)
    desc.shown = {name: value or "yes" for name, value in options.values.items() if name in IDLE}
    if desc.deadline is not None and desc.minutes is None:
        desc.shown.setdefault("time-min", "1")
    return desc


def _size(options: ParsedOptions, desc: JobDesc, folder: str, warn: Warn, release: Release) -> None:
    nodes, tasks, per_node = options.nodes(), options.number("ntasks"), options.number("ntasks-per-node", 0)
    if nodes and tasks and tasks < nodes.least:
        less = f"can't run {tasks} processes on {nodes.least} nodes, setting nnodes to {tasks}"
        warn(f"{options.command}: {release.warning}: {less}")
        nodes = NodeCounts(tasks, tasks)
    nodelist = options.hosts("nodelist") or _node_file(options, folder)
    too_many = nodes and len(nodelist) > nodes.most
    if nodes and too_many and not release.nodelist_may_be_longer:
        raise Refusal(f"{options.command}: error: invalid number of nodes (-N {len(nodelist)}-{nodes.most})")
    if per_node and tasks is None:
        desc.tasks_asked = False
        tasks = (nodes.least if nodes else len(nodelist) or 1) * per_node
    if nodes:
        desc.min_nodes, desc.max_nodes, desc.nodes_asked = nodes.least, nodes.most, True
        desc.node_counts = nodes.listed
    elif nodelist:
        desc.min_nodes = len(nodelist)
    elif per_node and tasks:
        desc.min_nodes = -(-tasks // per_node)
    if "use-min-nodes" in options and desc.max_nodes is not None:
        desc.max_nodes = desc.min_nodes
    desc.tasks, desc.tasks_per_node = tasks, per_node or None
    of_tasks = int(options.tres_per_task().get("cpu", 0)) or None
    desc.cpus_per_task, desc.min_cpus = options.number("cpus-per-task") or of_tasks, options.number("mincpus")
    desc.nodelist, desc.exclude = nodelist, options.hosts("exclude")
    # --mem=0 has the same effect as no --mem.
    desc.mem_per_node, desc.mem_per_cpu = options.megabytes("mem") or None, options.megabytes("mem-per-cpu") or None
    desc.minutes, desc.overcommit = options.minutes(), "overcommit" in options


def _gpus(options: ParsedOptions, desc: JobDesc, release: Release) -> None:
    desc.gpus = gpus = options.gpus()
    of_tasks = options.tres_per_task().get("gres/gpu")
    gpus.per_task = gpus.per_task or (int(of_tasks) if of_tasks else None)
    desc.cpus_per_gpu, desc.tasks_per_gpu = options.number("cpus-per-gpu"), options.number("ntasks-per-gpu")
    if gpus.per_job and gpus.per_node and not desc.nodes_asked:
        desc.min_nodes = -(-gpus.per_job // gpus.per_node)
    _check_gpus(options, desc, release)
    if desc.tasks_per_gpu:
        _tasks_per_gpu(options, desc, desc.tasks_per_gpu)
    if "gpus-per-socket" in options:
        if "sockets-per-node" in options:
            raise options.bad("--gpus-per-socket is not supported by this fake cluster. Use --gpus-per-node.")
        raise _no_gres(options, "--gpus-per-socket option requires --sockets-per-node specification")
    if desc.cpus_per_gpu and desc.cpus_per_task and release.tres_per_task:
        both = "--cpus-per-task, --tres-per-task=cpu:#, and --cpus-per-gpu are mutually exclusive"
        raise Refusal(f"{options.command}: fatal: {both}")
    if desc.cpus_per_gpu and not gpus and release.refuses_cpus_per_no_gpu:
        asked = f"cpus_per_tres={release.gpu_prefix.rstrip(':')}:{desc.cpus_per_gpu}"
        raise _no_gres(options, f"Requested {asked} but did not request any GPU.")
    desc.mem_per_gpu = options.megabytes("mem-per-gpu")
    if desc.mem_per_gpu is not None and not gpus:
        raise _no_gres(
            options, f"Requested mem_per_tres={release.gpu_prefix}{desc.mem_per_gpu} but did not request any GPU."
        )
    if desc.tasks is None and gpus.per_job and gpus.per_task:
        desc.tasks = gpus.per_job // gpus.per_task
    desc.gpu_bind = options.gpu_bind()
    desc.gpus_option, desc.gpus_per_node_option = options.get("gpus"), options.get("gpus-per-node")
    desc.gpus_per_task_option = options.get("gpus-per-task")


def _tasks_per_gpu(options: ParsedOptions, desc: JobDesc, each: int) -> None:
    """Sets the number of tasks from the number of GPUs, or the number of GPUs from the number of tasks or nodes."""
    for name in ("ntasks-per-node", "gpus-per-task", "gpus-per-socket"):
        if name in options:
            raise Refusal(f"{options.command}: fatal: --{name} {BESIDE_PER_GPU}")
    gpus = desc.gpus
    if gpus:
        desc.tasks = each * (gpus.per_job or (gpus.per_node or 0) * desc.min_nodes)
    elif desc.tasks is not None:
        if desc.tasks % each:
            text = "Failed to validate job spec, -n/--ntasks has to be a multiple of --ntasks-per-gpu."
            raise _no_gres(options, text)
        gpus.per_job = desc.tasks // each
    elif desc.nodes_asked:
        gpus.per_job, desc.tasks = desc.min_nodes, desc.min_nodes * each
    else:
        text = "gres_job_state_validate: --ntasks-per-tres needs either a GRES GPU specification or a node/ntask"
        raise _no_gres(options, f"{text} specification")


def _check_gpus(options: ParsedOptions, desc: JobDesc, release: Release) -> None:
    gpus, most = desc.gpus, desc.max_nodes if desc.nodes_asked and desc.max_nodes is not None else 1 << 30
    invalid, per_job, per_node = "Failed to validate job spec", gpus.per_job or 0, gpus.per_node or 0
    if per_job and per_node and per_job % per_node:
        raise _no_gres(options, f"{invalid}, --gpus is not multiple of --gres=gpu/--gpus-per-node")
    if per_job and per_node and not desc.min_nodes <= per_job // per_node <= most:
        raise _no_gres(
            options,
            f"{invalid}. Based on --gpu and --gres=gpu/--gpus-per-node required nodes ({per_job // per_node}) doesn't "
            f"fall between min_nodes ({desc.min_nodes}) and max_nodes ({most}) boundaries.",
        )
    if per_job and per_job < desc.min_nodes:
        raise _no_gres(options, f"{invalid}, --gpus < -N")
    counted = {"ntasks", "nodes", "nodelist", *(() if release.tres_per_task else ("ntasks-per-node",))}
    if gpus.per_task and not per_job and not counted & options.values.keys():
        raise _no_gres(options, f"{invalid}. {release.per_task_alone}")
    if gpus.per_task and per_job and desc.tasks and per_job != gpus.per_task * desc.tasks:
        raise _no_gres(
            options,
            f"{invalid}. Based on --gpus and --gpus-per-task number of requested tasks differ from -n/--ntasks.",
        )


def _no_gres(options: ParsedOptions, why: str) -> Refusal:
    return Refusal(f"{options.command}: error: {why}\n{options.command}: error: {INVALID_GRES}", 1)


def _place(options: ParsedOptions, desc: JobDesc) -> None:
    desc.exclusive = options.exclusive()
    desc.features, desc.prefer = options.get("constraint"), options.get("prefer")
    desc.reservation, desc.licenses = options.get("reservation"), options.get("licenses")
    desc.batch_features, desc.hint = options.get("batch"), options.get("hint")


def _node_file(options: ParsedOptions, folder: str) -> list[str]:
    name = options.get("nodefile")
    if not name:
        return []
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return [host for line in file for host in expand(line.strip())]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        text = f"{options.command}: error: slurm_allocate_resources error opening file {name}, {why}"
        raise Refusal(f"{text}\n{options.command}: error: Invalid --nodefile node file", BAD) from None


def _life(options: ParsedOptions, desc: JobDesc, warn: Warn, now: float) -> None:
    """Sets when the job may start, and how it may end."""
    desc.dependency = options.get("dependency") or None
    desc.kill_on_invalid_dep = (options.get("kill-on-invalid-dep") or "").lower() in ("y", "yes")
    desc.begin = times.moment(options.get("begin") or "now", now) if "begin" in options else None
    desc.deadline = times.moment(options.get("deadline") or "now", now) if "deadline" in options else None
    if desc.begin and desc.deadline and desc.deadline < desc.begin:
        raise Refusal(f"{options.command}: error: Incompatible begin and deadline time specification")
    for name in ("thread-spec", "core-spec"):
        if name in options:
            word = "--thread-spec" if name == "thread-spec" else "-S"
            why = "since it's not allowed by configuration (AllowSpecResourcesUsage = No)"
            warn(f"{options.command}: error: Ignoring {word} {why}")
    desc.hold = "hold" in options
    nice = options.get("nice")
    if nice is not None:
        desc.nice = int(nice or 100) if re.fullmatch(r"-?\d*", nice) else 0
    priority = options.get("priority")
    desc.priority = int(priority) if priority and priority.isdigit() else None
    desc.requeue = "no-requeue" not in options
    desc.no_kill = "no-kill" in options and options.get("no-kill") != "off"
    warning = options.warning_signal()
    if warning:
        desc.signal, desc.signal_s, desc.signal_batch = warning
    desc.comment = options.get("comment")
    desc.qos = options.get("qos") or "normal"


def _open_mode(options: ParsedOptions) -> str | None:
    mode = options.get("open-mode")
    if mode is None:
        return None
    if mode[:1].lower() not in ("a", "t"):
        raise options.invalid("open-mode")
    return "append" if mode[0].lower() == "a" else "truncate"
