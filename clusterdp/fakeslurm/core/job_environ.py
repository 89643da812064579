"""The variables that Slurm gives to a batch script and to each task of a step, as recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache

from .hostlist import compress
from .model import JobRecord, Model, Share, Step, sluid
from .ranges import counts
from .release import Release
from .shape import Shape, User

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
IN_OTHERS_JOBS_ONLY = (  # not in the environment of an srun outside of jobs
    "SLURM_DISTRIBUTION",
    "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0",
    "SLURM_NODE_ALIASES",
)
# Variables that salloc's command does not get, because it does not run on a node.
ON_NODES_ONLY = (
    "ENVIRONMENT",
    "SLURM_JOB_GID",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_SLUID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_UID",
    "SLURM_JOB_USER",
    "SLURM_OOM_KILL_STEP",
    "SLURM_PRIO_PROCESS",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURM_WORKING_CLUSTER",
)
YEAR_S = 365 * 24 * 3600  # run time from which SLURM_JOB_END_TIME is computed for a job without a time limit
BATCH_STEP_ID = "-5"  # SLURM_BATCH_SCRIPT as a signed number
EXTERNAL = "--external-launcher"
HYDRA = {
    "HYDRA_BOOTSTRAP": "HYDRA_LAUNCHER_EXTRA_ARGS",
    "I_MPI_HYDRA_BOOTSTRAP": "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
}
KEPT_WITHOUT_EXPORT = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TERM")


def of_submitter(environ: Mapping[str, str], export: str | None, release: Release) -> dict[str, str]:
    """Returns the variables that `sbatch --export=...` passes on."""
    if export is None or export.upper() == "ALL":
        return {
            name: value for name, value in environ.items() if name not in ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV")
        }
    # Source: env_array_merge_slurm_spank() of src/common/env.c
    slurms = {name: environ[name] for name in environ if name.startswith(("SLURM", "_SLURM_SPANK_OPTION_"))}
    slurms["SLURM_EXPORT_ENV"] = export
    if export.upper() == "NIL" and not release.nil_gets_user_env:
        return slurms
    words = split_words(export)
    everything = any(word.upper() == "ALL" for word in words)
    names = KEPT_WITHOUT_EXPORT if not everything else tuple(environ)
    found = {name: environ[name] for name in names if name in environ}
    found |= {word: environ[word] for word in words if word in environ}
    found |= dict(word.split("=", 1) for word in words if "=" in word)
    return found | slurms | {"SLURM_GET_USER_ENV": "1"}


def of_srun(environ: Mapping[str, str], export: str | None) -> dict[str, str]:
    """Returns the variables that `srun --export=...` passes on to the tasks. PATH is passed on only if the list has ALL
    or PATH."""
    found = dict(environ)
    words = split_words(export or "ALL")
    if "NONE" in (upper := [word.upper() for word in words]):  # srun ignores the words after NONE
        words = words[: upper.index("NONE")]
    if not any(word.upper() == "ALL" for word in words):
        found = {name: value for name, value in environ.items() if name.startswith(("SLURM", "SPANK_"))}
        found |= {word: environ[word] for word in words if word in environ}
    found |= dict(word.split("=", 1) for word in words if "=" in word)
    # Values of sbatch --export=NAME=VALUE win over values in srun's environment.
    outer = split_words(environ.get("SLURM_EXPORT_ENV", "ALL"))
    if export is None or any(word.upper() == "ALL" for word in words):
        found |= dict(word.split("=", 1) for word in outer if "=" in word)
    return found


def split_words(text: str) -> list[str]:
    """Splits a text at commas outside quotes, and keeps the quotes."""
    words, quote = [""], ""
    for letter in text:
        if letter == "," and not quote:
            words.append("")
            continue
        if letter in "'\"":
            quote = "" if letter == quote else quote or letter
        words[-1] += letter
    return [word for word in words if word]


OF_GPUS = ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")
ASKED_GPUS = (*OF_GPUS, "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND")  # in a job, from srun's environment only


def hidden_from_own(release: Release) -> set[str]:
    """Returns the variables that the tasks of an srun outside of jobs do not have."""
    return {*IN_OTHERS_JOBS_ONLY, *(() if release.own_gpus_per_node else OF_GPUS)}


def of_launchers(environ: Mapping[str, str], release: Release) -> dict[str, str]:
    """Returns the variables for mpirun and similar launchers, which the caller adds to the submitter's variables."""
    if not release.tells_launchers:
        return {}
    found = {"OMPI_MCA_plm_slurm_args": EXTERNAL, "PRTE_MCA_plm_slurm_args": EXTERNAL}
    for name, more in HYDRA.items():
        if environ.get(name, "slurm") == "slurm":
            found |= {name: "slurm", more: EXTERNAL}
    return {name: value for name, value in found.items() if name not in environ}


# Only processes of jobs have this variable, by which the cluster finds these processes when it goes down. SLURM_CONF
# is unsuitable, because `fake env` sets SLURM_CONF in the user's shell: the cluster would kill the user's editor.
MARK = "FAKESLURM_JOB_OF"  # slurm/env.py has the same name


def of_job(job: JobRecord, user: User, shape: Shape, conf: str) -> dict[str, str]:
    """Returns the variables that every process of a job gets."""
    desc, nodes, settings = job.desc, compress(job.nodes), shape.settings
    found = {
        "ENVIRONMENT": "BATCH",
        "SLURM_CLUSTER_NAME": shape.name,
        "SLURM_CONF": conf,
        MARK: conf,
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_ACCOUNT": desc.account or user.name,
        "SLURM_JOB_CPUS_PER_NODE": counts([share.cpus for share in job.shares]),
        "SLURM_JOB_GID": str(user.gid),
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NAME": desc.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_PARTITION": desc.partition,
        "SLURM_JOB_QOS": desc.qos,
        "SLURM_JOB_UID": str(user.uid),
        "SLURM_JOB_USER": user.name,
        "SLURM_NNODES": str(len(job.nodes)),
        "SLURM_NODELIST": nodes,
        "SLURM_SUBMIT_DIR": desc.shown.get("submit-dir", desc.folder),
        "SLURM_SUBMIT_HOST": desc.host,
        "SLURM_TASKS_PER_NODE": tasks_per_node(job),
        "SLURM_PRIO_PROCESS": "0",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }
    found |= _of_release(job, shape)
    if desc.tasks is not None and (desc.tasks_asked or not (job.het and desc.batch)):
        found |= {"SLURM_NTASKS": str(job.tasks), "SLURM_NPROCS": str(job.tasks)}
    asked = {
        "SLURM_NTASKS_PER_NODE": desc.tasks_per_node,
        "SLURM_NTASKS_PER_GPU": desc.tasks_per_gpu,
        "SLURM_CPUS_PER_TASK": desc.cpus_per_task,
        "SLURM_CPUS_PER_GPU": desc.cpus_per_gpu,
        "SLURM_MEM_PER_NODE": desc.mem_per_node,
        "SLURM_MEM_PER_CPU": desc.mem_per_cpu,
        "SLURM_MEM_PER_GPU": desc.mem_per_gpu,
        "SLURM_HINT": desc.hint,
        "SLURM_OVERCOMMIT": "1" if desc.overcommit else None,
        "SLURM_GPUS": desc.gpus_option,
        "SLURM_GPUS_PER_NODE": desc.gpus_per_node_option,
        "SLURM_GPU_BIND": None if settings.release.bind_is_tres else desc.gpu_bind,
        "SLURM_GPUS_PER_TASK": None if settings.release.tres_per_task else desc.gpus_per_task_option,
        "SLURM_RESTART_COUNT": job.restarts or None,
        "SLURM_JOB_DEPENDENCY": desc.dependency,
        "SLURM_JOB_LICENSES": desc.licenses,
        "SLURM_OPEN_MODE": desc.open_mode and desc.open_mode[0],
    }
    found |= {name: str(value) for name, value in asked.items() if value is not None} | of_distribution(
        desc.distribution
    )
    if job.array:
        array = job.array
        found |= {
            "SLURM_ARRAY_JOB_ID": str(array.id),
            "SLURM_ARRAY_TASK_ID": str(array.indexes[0]),
            "SLURM_ARRAY_TASK_COUNT": str(array.count),
            "SLURM_ARRAY_TASK_MIN": str(array.low),
            "SLURM_ARRAY_TASK_MAX": str(array.high),
            "SLURM_ARRAY_TASK_STEP": str(array.step),
        }
    return found


def of_distribution(text: str | None) -> dict[str, str]:
    """Returns the variables of --distribution: block:cyclic for `block:*`, plane and 2 for `plane=2`."""
    name, _, size = (text or "").replace(":*", ":cyclic").partition("=")
    found = {"SLURM_DISTRIBUTION": "block" if name == "*" else name} if name else {}
    return found | ({"SLURM_DIST_PLANESIZE": size} if size else {})


def _of_release(job: JobRecord, shape: Shape) -> dict[str, str]:
    """Returns the variables for every process of a job that exist only in some releases of Slurm."""
    release, found = shape.settings.release, dict[str, str]()
    if release.has_old_variables:
        found["SLURM_NODE_ALIASES"] = "(null)"
        found["SLURM_WORKING_CLUSTER"] = f"{shape.name}:127.0.0.1:0:9728:109"
    if release.times_in_environ and job.start is not None:
        limit = job.minutes * shape.settings.minute_s if job.minutes else YEAR_S
        found |= {"SLURM_JOB_START_TIME": str(int(job.start)), "SLURM_JOB_END_TIME": str(int(job.start + limit))}
    if release.has_debug_variables:
        found["SLURM_OOM_KILL_STEP"] = "0"
    if release.tres_per_task:
        found |= tres_per_task(job, release.gpu_in_bind)
    if release.has_sluid:
        found["SLURM_JOB_SLUID"] = sluid(job)
    if release.has_sluid and job.desc.batch:
        found |= {"SLURM_JOB_EXCLUSIVE": "NODE" if job.desc.exclusive else "NO", "SLURM_JOB_OVERSUBSCRIBE": "NO"}
    return found


def tres_per_task(job: JobRecord, gpu: str) -> dict[str, str]:
    """Returns the variables with the CPUs and GPUs that the job asked for each task."""
    asked = {"cpu": job.desc.cpus_per_task, "gres/gpu": job.desc.gpus.per_task}
    words = [f"{name}={count}" for name, count in asked.items() if count]
    found = {"SLURM_TRES_PER_TASK": ",".join(words)} if words else {}
    if job.desc.gpu_bind or job.desc.gpus.per_task:
        found["SLURM_TRES_BIND"] = f"{gpu}:{job.desc.gpu_bind or f'per_task:{job.desc.gpus.per_task}'}"
    return found


OF_GROUPS_ONLY = ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_TRES_PER_TASK")
# The variables that a batch script, or the command of an salloc, has for each component.
OF_COMPONENTS = (
    *("SLURM_JOB_ID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST"),
    *("SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_NPROCS", "SLURM_NTASKS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_DISTRIBUTION"),
)


def of_het(model: Model, job: JobRecord, user: User, shape: Shape) -> dict[str, str]:
    """Returns the variables of a heterogeneous job. Each variable exists twice, because _PACK_GROUP_ is Slurm's older
    name for _HET_GROUP_."""
    if not job.het:
        return {}
    found = {"SLURM_HET_SIZE": str(job.het.size), "SLURM_PACK_SIZE": str(job.het.size)}
    for other in model.components(job):
        assert other.het
        about = of_job(other, user, shape, "")
        for name in OF_COMPONENTS:
            if name in about:
                found[f"{name}_HET_GROUP_{other.het.offset}"] = about[name]
                found[f"{name}_PACK_GROUP_{other.het.offset}"] = about[name]
    return found


def tasks_per_node(job: JobRecord) -> str:
    """Returns the number of tasks on each node, like 2,1(x3). A job that asked for no number has as many tasks as its
    CPUs allow."""
    room = [max(share.cpus // (job.desc.cpus_per_task or 1), 1) for share in job.shares]
    return counts(deal(job.tasks if job.tasks is not None else sum(room), room))


def of_batch(job: JobRecord, release: Release) -> dict[str, str]:
    """Returns the variables that only the batch script has."""
    share = job.shares[0]
    step = {"SLURM_STEPID": BATCH_STEP_ID, "SLURM_STEP_ID": BATCH_STEP_ID} if release.has_sluid else {}
    return step | {
        "HOSTNAME": share.node,
        "SLURMD_NODENAME": share.node,
        "SLURM_TOPOLOGY_ADDR": share.node,
        "SLURM_CPUS_ON_NODE": str(share.cpus),
        "SLURM_GTIDS": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        **job_gpus(share),
        **gpu_variables(share.gpus),
    }


def job_gpus(share: Share) -> dict[str, str]:
    return {"SLURM_JOB_GPUS": _list(share.gpus)} if share.gpus else {}


def gpu_variables(gpus: list[int], on_node: int | None = None) -> dict[str, str]:
    """Returns the variables that name a task's GPUs. `on_node`: the number of GPUs that the step has on the node."""
    if not gpus:
        return {}
    real = real_gpus()
    seen = ",".join(dict.fromkeys(real[gpu % len(real)] for gpu in gpus)) if real else _list(gpus)
    found = dict.fromkeys(GPU_VARIABLES, seen)
    return found | {"SLURM_GPUS_ON_NODE": str(len(gpus) if on_node is None else on_node)}


@cache
def real_gpus() -> list[str]:
    """Returns this machine's GPUs, as CUDA_VISIBLE_DEVICES names them.

    If the machine has GPUs, the cluster's GPUs are dealt to them in turn: on a machine with one GPU, a task that saw
    only GPU 1 would run on the CPU and round differently from other tasks.
    """
    found = [name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia")]
    numbers = sorted((name for name in found if name.isdigit()), key=int)
    named = os.environ.get("CUDA_VISIBLE_DEVICES") if numbers else None
    return numbers if named is None else [name for name in named.split(",") if name]


def of_nodes(shares: list[Share]) -> dict[str, str]:
    """Returns the variables about nodes for a step of a heterogeneous job, which sees only the nodes of `shares`."""
    nodes, number = compress([share.node for share in shares]), str(len(shares))
    return {
        "SLURM_JOB_CPUS_PER_NODE": counts([share.cpus for share in shares]),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": number,
        "SLURM_NNODES": number,
        "SLURM_NODELIST": nodes,
    }


def of_step(
    job: JobRecord, step: Step, steps: list[Step], umask: int, port: int, shape: Shape, group: str
) -> dict[str, str]:
    """Returns the variables of a step's tasks on this component. `steps`: the records of the step in all components."""
    per_node = counts([count for each in steps for count in each.tasks_per_node])
    nodes = compress([node for each in steps for node in each.nodes])
    tasks = str(sum(each.tasks for each in steps))
    release, found = shape.settings.release, dict[str, str]()
    if release.has_old_variables and not job.het:
        found["SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0"] = counts([share.cpus for share in job.shares])
    if release.has_debug_variables:
        found["SLURMD_DEBUG"] = "2"
    if release.tasks_with_group == "all" or (release.tasks_with_group == "own" and job.made_by_srun):
        found["SLURM_JOB_GROUP"] = group
    return found | {
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_DISTRIBUTION": step.distribution,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_SRUN_COMM_PORT": str(port),
        "SLURM_STEPID": step.id,
        "SLURM_STEP_ID": step.id,
        "SLURM_STEP_LAUNCHER_PORT": str(port),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": str(sum(len(each.nodes) for each in steps)),
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_UMASK": f"{umask:04o}",
        "SRUN_DEBUG": "3",
    }


def of_task(
    step: Step,
    node_index: int,
    rank: int,
    local: int,
    ranks: list[int],
    gpus: list[int],
    bind: str | None,
    release: Release,
) -> dict[str, str]:
    """Returns the variables of one task. `gpus`: the numbers of the node's GPUs that the task may see. `bind`: the
    value of --gpu-bind that selected these GPUs.
    """
    node = step.nodes[node_index]
    on_node = step.gpus.get(node, [])
    found = {
        "SLURMD_NODENAME": node,
        "SLURM_TOPOLOGY_ADDR": node,
        "SLURM_CPUS_ON_NODE": str(step.cpus.get(node, 0)),
        "SLURM_GTIDS": ",".join(map(str, ranks)),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node_index),
        "SLURM_PROCID": str(rank),
    }
    if bind and (len(ranks) > 1 or release.binds_single_tasks):
        found["SLURMD_TRES_BIND"] = f"{release.gpu_in_bind}:{bind}"
    if gpus:
        found |= {"SLURM_STEP_GPUS": _list(gpus), **gpu_variables(gpus, len(on_node))}
    elif on_node:
        found["SLURM_GPUS_ON_NODE"] = str(len(on_node))
    return found


def _list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def deal(tasks: int, room: Sequence[int], cyclic: bool = False) -> list[int]:
    """Returns the number of tasks on each node. Each round deals one task to each node that has room. `room`: the
    number of tasks for which each node has CPUs.

    `deal` assigns no ranks. Tasks without room are dealt to all nodes in turn; in cyclic order, each node gets
    at most its room and an equal part of the tasks without room.
    """
    counts = [0] * len(room)
    excess = tasks - sum(room)
    above = -(-excess // len(room)) if cyclic and excess > 0 else 0
    crowded, lap = False, 0
    while tasks:
        space = False
        for i, most in enumerate(room):
            if tasks and ((crowded and not cyclic) or lap < most + above):
                counts[i] += 1
                tasks -= 1
                space = space or lap + 1 < most
        crowded = crowded or not space
        lap += 1
    return counts
