"""Who a process is: a wrong rank or size hangs a job before its first step, or trains twice on the same data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterdp.errors import SlurmError
from clusterdp.slurm.env import SlurmEnv

RECORDS = Path(__file__).parent.parent / "slurm_facts" / "records" / "22.05"

STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_GTIDS": "2,3",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_STEP_NODELIST": "n[1-2]",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "NODE_RANK": "0",
}


def test_slurm_env_reads_rank_world_size_and_attempt_of_an_srun_task() -> None:
    env = SlurmEnv.read(STEP)
    assert (env.launcher, env.rank, env.world_size) == ("srun", 3, 4)
    assert (env.local_rank, env.local_world_size, env.node_rank) == (1, 2, 1)
    assert (env.attempt, env.nodelist, env.one_node) == ("77.0", "n[1-2]", False)


def test_nodes_of_the_ranks_take_precedence_over_sorted_nodes() -> None:
    assert SlurmEnv.read({**STEP, "CLUSTERDP_NODES": "n4,n2"}).nodelist == "n4,n2"


def test_torchrun_variables_take_precedence_over_slurm_variables() -> None:
    env = SlurmEnv.read({**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_GTIDS": "1", **TORCHRUN})
    assert (env.launcher, env.rank, env.world_size) == ("torchrun", 5, 8)
    assert (env.local_rank, env.local_world_size, env.node_rank) == (1, 4, 1)
    assert env.job_id == "77"


def test_exported_rank_and_world_size_replace_all_rank_variables_of_slurm() -> None:
    env = SlurmEnv.read({**STEP, "RANK": "0", "WORLD_SIZE": "2"})
    assert (env.launcher, env.rank, env.world_size, env.local_rank) == ("exported", 0, 2, 0)


def test_process_in_the_batch_script_has_world_size_1() -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    for release in ({}, {"SLURM_STEP_ID": "-5", "SLURM_STEPID": "-5"}):  # 26.05
        env = SlurmEnv.read({**batch, **release})
        assert (env.launcher, env.rank, env.world_size, env.job_id) == ("single", 0, 1, "77")


def test_process_outside_slurm_has_world_size_1_and_no_attempt() -> None:
    assert SlurmEnv.read({}) == SlurmEnv("single")
    assert SlurmEnv.read({}).attempt is None


@pytest.mark.parametrize(
    ("count", "attempt"),
    [
        ({}, "77.0"),
        ({"SLURM_RESTART_COUNT": "2"}, "77.2"),
        ({"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "4"}, "70_4.0"),
    ],
)
def test_attempt_name_is_built_from_job_array_task_and_restart_count(count: dict[str, str], attempt: str) -> None:
    assert SlurmEnv.read({**STEP, **count}).attempt == attempt


@pytest.mark.parametrize("bad", [{"SLURM_PROCID": "four"}, {"SLURM_PROCID": "4"}, {"RANK": "-1", "WORLD_SIZE": "2"}])
def test_invalid_rank_is_an_error_with_the_name_of_its_variable(bad: dict[str, str]) -> None:
    with pytest.raises(SlurmError, match=next(iter(bad))):
        SlurmEnv.read({**STEP, **bad})


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "4"}, "RANK"),
        ({"RANK": "2", "LOCAL_RANK": "0"}, "WORLD_SIZE"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_PROCID"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, "RANK"),
    ],
)
def test_rank_without_all_of_its_variables_is_an_error(seen: dict[str, str], missing: str) -> None:
    with pytest.raises(SlurmError, match=rf"{missing}.*is not set.*Set both, or neither"):
        SlurmEnv.read(seen)
    assert SlurmEnv.read({"WORLD_SIZE": "1"}).launcher == "single"


def test_recorded_slurm_environments_give_each_task_its_rank() -> None:
    environments = json.loads((RECORDS / "plain.json").read_text())["env"]
    tasks = [SlurmEnv.read(env) for name, env in sorted(environments.items()) if name.startswith("task")]
    assert [(t.rank, t.local_rank, t.node_rank) for t in tasks] == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]
    assert {(t.launcher, t.world_size, t.local_world_size) for t in tasks} == {("srun", 4, 2)}
    assert SlurmEnv.read(environments["batch"]).world_size == 1
