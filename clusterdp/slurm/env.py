"""SlurmEnv: the rank and the job of this process, read from its environment. Standard library only.

Three kinds of launcher set a process's rank, each in its own variables. Only the first launcher below whose mark is set
counts, because mixed variables would give wrong results: with one srun task per node and torchrun inside, RANK counts
processes and SLURM_PROCID counts nodes. Without any mark this is a single process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterdp.errors import SlurmError

# launcher      mark                    field -> its variable
COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "torchrun": (
        "TORCHELASTIC_RUN_ID",
        {
            "rank": "RANK",
            "world_size": "WORLD_SIZE",
            "local_rank": "LOCAL_RANK",
            "local_world_size": "LOCAL_WORLD_SIZE",
            "node_rank": "GROUP_RANK",  # the agent's order of arrival; NODE_RANK comes from the batch script
        },
    ),
    "exported": (  # by clusterdp's batch script, or another that uses torch's env:// names
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
        # Not SLURM_PROCID nor SLURM_STEP_ID, because a batch script has these too (SLURM_STEP_ID is -5 on 26.05).
        "SLURM_STEP_NUM_TASKS",
        {
            "rank": "SLURM_PROCID",
            "world_size": "SLURM_STEP_NUM_TASKS",
            "local_rank": "SLURM_LOCALID",
            "local_world_size": "SLURM_GTIDS",  # `2,3`: the ranks on this node
            "node_rank": "SLURM_NODEID",
        },
    ),
}

# Variables of the job, equal under every launcher. An unset variable means None.
JOB = {
    "job_id": "SLURM_JOB_ID",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "node_name": "SLURMD_NODENAME",
    "launch_address": "SLURM_LAUNCH_NODE_IPADDR",  # the address of srun's node: in a batch job the first node
    "end_time": "SLURM_JOB_END_TIME",  # 22.05 sets it only in some set-ups, 23.02 and later always
}

FAKE_MARK = "FAKESLURM_JOB_OF"  # set in every job of the fake, whose GPUs are pretended

# --gpus-per-task=2 in the words of 24.11 (`cpu=4,gres/gpu=2`, `gres/gpu:a100=2`) and of 23.11 (`gres:gpu:2`)
_GPUS_OF_TASK = re.compile(r"gres[/:]gpu(?::[^:=,]+)?[:=](\d+)")


@dataclass(frozen=True)
class SlurmEnv:
    launcher: str  # torchrun | exported | srun | single
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    job_id: str | None = None
    array_job_id: str | None = None
    array_task_id: str | None = None
    restart_count: int = 0  # SLURM_RESTART_COUNT is unset in the first attempt
    nodelist: str | None = None  # of the step if there is one: rank 0 is on its first host
    node_name: str | None = None
    launch_address: str | None = None
    end_time: str | None = None
    gpus_per_task: int | None = None  # None unless asked for, or if this is not a task of its own
    gives_gpus: bool = False  # whether a real Slurm gave GPUs to this task

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> SlurmEnv:
        """Raises SlurmError if a variable that should be a number is not a number."""
        launcher = next((name for name, (mark, _) in COLUMNS.items() if environ.get(mark)), "single")
        place = _place(launcher, environ)
        job = {field: environ.get(name) or None for field, name in JOB.items()}
        return cls(
            launcher=launcher,
            **place,  # type: ignore[arg-type]
            **job,  # type: ignore[arg-type]
            restart_count=_number("SLURM_RESTART_COUNT", environ.get("SLURM_RESTART_COUNT") or "0"),
            nodelist=environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or None,
            gpus_per_task=_gpus_per_task(environ) if _is_task(launcher, place, environ) else None,
            gives_gpus=launcher != "single" and FAKE_MARK not in environ and _has_gpus(environ),
        )

    @property
    def attempt(self) -> str | None:
        """`<job>.<restart>`, the name that the batch script gives; None outside a job."""
        if self.array_job_id is not None and self.array_task_id is not None:
            # The last element's own id equals the array's id, and would name the whole array.
            return f"{self.array_job_id}_{self.array_task_id}.{self.restart_count}"
        return None if self.job_id is None else f"{self.job_id}.{self.restart_count}"

    @property
    def one_node(self) -> bool:
        return self.local_world_size >= self.world_size


def _place(launcher: str, environ: Mapping[str, str]) -> dict[str, int]:
    if launcher == "single":
        return {}
    place: dict[str, int] = {}
    for field, name in COLUMNS[launcher][1].items():
        text = environ.get(name)
        if text is None:
            continue  # some launchers set RANK and WORLD_SIZE only; the default is one process on each node
        place[field] = len(text.split(",")) if name == "SLURM_GTIDS" else _number(name, text)
    if not 0 <= place.get("rank", 0) < place.get("world_size", 1):
        names = COLUMNS[launcher][1]
        raise SlurmError(
            f"{names['rank']}: {place.get('rank', 0)} is not a rank among {place.get('world_size', 1)} "
            f"({names['world_size']}). Set both, or neither."
        )
    return place


def _is_task(launcher: str, place: Mapping[str, int], environ: Mapping[str, str]) -> bool:
    """Whether srun started this very process, and not an agent such as torchrun that started several."""
    on_node = len(environ.get("SLURM_GTIDS", "").split(","))
    return launcher != "single" and on_node == place.get("local_world_size", 1)


def _has_gpus(environ: Mapping[str, str]) -> bool:
    """22.05 does not set SLURM_STEP_GPUS with --gpu-bind=none."""
    return bool(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_GPUS_ON_NODE", "0").strip("0"))


def _gpus_per_task(environ: Mapping[str, str]) -> int | None:
    found = _GPUS_OF_TASK.search(environ.get("SLURM_TRES_PER_TASK", ""))  # 24.11 has no SLURM_GPUS_PER_TASK any more
    text = found.group(1) if found else environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    return int(text) if text.isdigit() and int(text) else None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SlurmError(f"{name}: {text!r} is not a number. Unset it, or set what the launcher would.") from None
