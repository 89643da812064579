"""SlurmEnv: the rank and the job of this process, read from its environment. Standard library only.

Three kinds of launcher set a process's rank, each in its own variables. Only the first launcher in the table below
whose mark is set counts, because mixed variables would give wrong results: with one srun task per node and torchrun
inside, RANK counts processes and SLURM_PROCID counts nodes. If no mark is set, the process runs alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterdp.errors import SlurmError

# launcher -> (the variable that marks it, field -> variable)
COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "torchrun": (
        "TORCHELASTIC_RUN_ID",
        {
            "rank": "RANK",
            "world_size": "WORLD_SIZE",
            "local_rank": "LOCAL_RANK",
            "local_world_size": "LOCAL_WORLD_SIZE",
            "node_rank": "GROUP_RANK",  # order in which agents arrived; NODE_RANK is the batch script's
        },
    ),
    "exported": (  # set by a batch script that exports the names of torch's env://
        "RANK",
        {
            "rank": "RANK",
            "world_size": "WORLD_SIZE",
            "local_rank": "LOCAL_RANK",
            "local_world_size": "LOCAL_WORLD_SIZE",
            "node_rank": "NODE_RANK",
        },
    ),
    "srun": (
        # The mark is neither SLURM_PROCID nor SLURM_STEP_ID, because a batch script also has these (SLURM_STEP_ID is -5
        # on 26.05).
        "SLURM_STEP_NUM_TASKS",
        {
            "rank": "SLURM_PROCID",
            "world_size": "SLURM_STEP_NUM_TASKS",
            "local_rank": "SLURM_LOCALID",
            "local_world_size": "SLURM_GTIDS",  # the ranks on this node, such as `2,3`
            "node_rank": "SLURM_NODEID",
        },
    ),
}

# Variables of the job, which are the same under every launcher. If a variable is unset, the field is None.
JOB = {
    "job_id": "SLURM_JOB_ID",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "node_name": "SLURMD_NODENAME",
    "launch_address": "SLURM_LAUNCH_NODE_IPADDR",  # address of the node where srun runs: in a batch job the first
    "end_time": "SLURM_JOB_END_TIME",  # set by 22.05 only in some set-ups, by 23.02 and later always
}

BOTH = "Set both, or neither. A container may keep some variables from its processes."

# CLUSTERDP_NODES is set in a job with spare nodes, where the order of the ranks' nodes may not be Slurm's
NODELISTS = ("CLUSTERDP_NODES", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")

FAKE_MARK = "FAKESLURM_JOB_OF"  # set in every job of a fake cluster, which has no real GPUs

# --gpus-per-task=2 as 24.11 writes it (`cpu=4,gres/gpu=2`, `gres/gpu:a100=2`), and 23.11 (`gres:gpu:2`)
_GPUS_OF_TASK = re.compile(r"gres[/:]gpu(?::[^:=,]+)?[:=](\d+)")


@dataclass(frozen=True)
class SlurmEnv:
    launcher: str  # torchrun, exported, srun or single
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    job_id: str | None = None
    array_job_id: str | None = None
    array_task_id: str | None = None
    restart_count: int = 0  # 0 in the first attempt, where SLURM_RESTART_COUNT is unset
    nodelist: str | None = None  # hosts of the step, else of the job; rank 0 is on the first host
    node_name: str | None = None
    launch_address: str | None = None
    end_time: str | None = None
    gpus_per_task: int | None = None  # None if not requested, or if srun's task starts several ranks
    gives_gpus: bool = False  # whether a real Slurm gave GPUs to this task

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> SlurmEnv:
        """Reads the environment. Raises SlurmError if a variable that should be a number is not a number."""
        launcher = next((name for name, (mark, _) in COLUMNS.items() if environ.get(mark)), "single")
        place = _place(launcher, environ)
        job = {field: environ.get(name) or None for field, name in JOB.items()}
        return cls(
            launcher=launcher,
            **place,  # type: ignore[arg-type]
            **job,  # type: ignore[arg-type]
            restart_count=_number("SLURM_RESTART_COUNT", environ.get("SLURM_RESTART_COUNT") or "0"),
            nodelist=next((value for value in map(environ.get, NODELISTS) if value), None),
            gpus_per_task=_gpus_per_task(environ) if _is_task(launcher, place, environ) else None,
            gives_gpus=launcher != "single" and FAKE_MARK not in environ and _has_gpus(environ),
        )

    @property
    def attempt(self) -> str | None:
        """The name `<job>.<restart>` of the first attempt in this allocation, as in the batch program; None outside a
        job."""
        if self.array_job_id is not None and self.array_task_id is not None:
            # SLURM_JOB_ID of the last element equals the array's id, and would name the whole array.
            return f"{self.array_job_id}_{self.array_task_id}.{self.restart_count}"
        return None if self.job_id is None else f"{self.job_id}.{self.restart_count}"

    @property
    def one_node(self) -> bool:
        return self.local_world_size >= self.world_size


def _place(launcher: str, environ: Mapping[str, str]) -> dict[str, int]:
    if launcher == "single":
        if _number("WORLD_SIZE", environ.get("WORLD_SIZE") or "1") > 1:
            raise SlurmError(f"WORLD_SIZE: {environ['WORLD_SIZE']}, and RANK is not set. {BOTH}")
        return {}
    place: dict[str, int] = {}
    for field, name in COLUMNS[launcher][1].items():
        text = environ.get(name)
        if text is None:
            continue  # some launchers set only RANK and WORLD_SIZE: one process on each node
        place[field] = len(text.split(",")) if name == "SLURM_GTIDS" else _number(name, text)
    names = COLUMNS[launcher][1]
    for field in ("rank", "world_size"):
        if field not in place:  # else each rank would train alone
            raise SlurmError(f"{names[field]}: is not set, and {COLUMNS[launcher][0]} is. {BOTH}")
    if not 0 <= place["rank"] < place["world_size"]:
        raise SlurmError(
            f"{names['rank']}: {place['rank']} is not a rank among {place['world_size']} ({names['world_size']}). "
            "Set both, or neither."
        )
    return place


def _is_task(launcher: str, place: Mapping[str, int], environ: Mapping[str, str]) -> bool:
    """Returns whether srun started this very process, and not an agent such as torchrun's, which starts several
    processes."""
    on_node = len(environ.get("SLURM_GTIDS", "").split(","))
    return launcher != "single" and on_node == place.get("local_world_size", 1)


def _has_gpus(environ: Mapping[str, str]) -> bool:
    """Returns whether Slurm gave GPUs to this process. With --gpu-bind=none, Slurm 22.05 does not set
    SLURM_STEP_GPUS."""
    return bool(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_GPUS_ON_NODE", "0").strip("0"))


def _gpus_per_task(environ: Mapping[str, str]) -> int | None:
    found = _GPUS_OF_TASK.search(environ.get("SLURM_TRES_PER_TASK", ""))  # 24.11 and later
    text = found.group(1) if found else environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    return int(text) if text.isdigit() and int(text) else None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SlurmError(f"{name}: {text!r} is not a number. Unset it, or set what the launcher would.") from None
