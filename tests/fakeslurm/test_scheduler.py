"""Who starts where: schedule(model, now) is pure, so these tests need no clock and no process."""

import pickle

import pytest

from clusterdp.fakeslurm.core.job_desc import Gpus, JobDesc
from clusterdp.fakeslurm.core.model import Array, JobRecord, Model
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.fakeslurm.core.state import JobState
from clusterdp.fakeslurm.slurmctld.scheduler import CancelInvalid, KeepPending, PreemptJob, StartJob, schedule

NOW = 1_000_000.0


@pytest.fixture
def model() -> Model:
    model = Model.of(Shape.simple(), NOW)
    for name, features in (("n1", ["fast"]), ("n2", ["fast"]), ("n3", ["fast", "big"]), ("n4", ["big"])):
        model.nodes[name].features = features
    return model


def add(model: Model, **asked: object) -> JobRecord:
    """A job that waits."""
    desc = JobDesc(**{"name": "job", "partition": "main", **asked})  # type: ignore[arg-type]
    number = model.new_id()
    model.jobs[number] = JobRecord(number, desc, 1_000_000 - number, NOW)
    return model.jobs[number]


def run(model: Model, **asked: object) -> JobRecord:
    """A job that has started."""
    job = add(model, **asked)
    [start] = [each for each in schedule(model, NOW) if isinstance(each, StartJob) and each.job == job.id]
    job.state, job.start, job.shares, job.minutes = JobState.RUNNING, NOW, list(start.shares), job.desc.minutes
    return job


def reason(model: Model, job: JobRecord) -> str:
    [wait] = [each for each in schedule(model, NOW) if isinstance(each, KeepPending) and each.job == job.id]
    return wait.reason


def placement(model: Model, job: JobRecord) -> list[tuple[str, int]]:
    [start] = [each for each in schedule(model, NOW) if isinstance(each, StartJob) and each.job == job.id]
    return [(share.node, share.tasks) for share in start.shares]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"tasks": 3}, [("n1", 3)]),
        ({"min_nodes": 2, "max_nodes": 2, "tasks": 3}, [("n1", 2), ("n2", 1)]),
        ({"min_nodes": 4, "max_nodes": 4, "tasks": 9}, [("n1", 6), ("n2", 1), ("n3", 1), ("n4", 1)]),
        ({"tasks": 20}, [("n1", 8), ("n2", 8), ("n3", 4)]),
        ({"min_nodes": 3, "max_nodes": 3, "tasks": 4, "distribution": "cyclic"}, [("n1", 2), ("n2", 1), ("n3", 1)]),
        ({"min_nodes": 2, "max_nodes": 4}, [("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1)]),
        ({"nodelist": ["n2", "n4"], "min_nodes": 2, "max_nodes": 2}, [("n2", 1), ("n4", 1)]),
        ({"exclude": ["n1"], "min_nodes": 2, "max_nodes": 2}, [("n2", 1), ("n3", 1)]),
        ({"min_cpus": 3}, [("n1", 3)]),
        ({"features": "[fast|big]", "min_nodes": 2, "max_nodes": 2}, [("n1", 1), ("n2", 1)]),
        ({"features": "[big|fast]", "min_nodes": 2, "max_nodes": 2}, [("n3", 1), ("n4", 1)]),
        ({"features": "fast&big"}, [("n3", 1)]),
        ({"gpus": Gpus(per_job=3)}, [("n1", 1), ("n2", 1)]),
    ],
)
def test_scheduler_distributes_tasks_over_nodes_as_recorded(
    model: Model, asked: dict[str, object], expected: list[tuple[str, int]]
) -> None:
    assert placement(model, add(model, **asked)) == expected


def test_two_jobs_on_a_node_share_no_cpu_or_gpu(model: Model) -> None:
    first = run(model, tasks=4, gpus=Gpus(per_node=1))
    second = run(model, tasks=4, gpus=Gpus(per_node=1))
    assert first.nodes == second.nodes == ["n1"]
    assert not set(first.shares[0].cpu_ids) & set(second.shares[0].cpu_ids)
    assert first.shares[0].gpus != second.shares[0].gpus


def test_exclusive_job_skips_a_partly_used_node(model: Model) -> None:
    run(model)
    assert placement(model, add(model, exclusive=True)) == [("n2", 1)]


def test_first_pending_job_has_reason_resources_and_the_next_has_priority(model: Model) -> None:
    run(model, min_nodes=4, max_nodes=4, exclusive=True)
    first, second = add(model, min_nodes=4, max_nodes=4), add(model, min_nodes=4, max_nodes=4)
    assert (reason(model, first), reason(model, second)) == ("Resources", "Priority")


def test_higher_tier_job_starts_before_an_earlier_lower_tier_job(model: Model) -> None:
    add(model, partition="low", min_nodes=4, max_nodes=4, exclusive=True)
    high = add(model, min_nodes=4, max_nodes=4, exclusive=True)
    assert [each.job for each in schedule(model, NOW) if isinstance(each, StartJob)] == [high.id]


def test_higher_tier_job_preempts_only_as_many_jobs_as_needed(model: Model) -> None:
    lows = [run(model, partition="low", exclusive=True) for _ in range(4)]
    high = add(model, exclusive=True)
    preempted = [each.job for each in schedule(model, NOW) if isinstance(each, PreemptJob)]
    assert len(preempted) == 1
    assert preempted[0] in {low.id for low in lows}
    assert reason(model, high) == "Resources"


def test_scheduler_preempts_no_second_job_during_the_grace_time_of_the_first(model: Model) -> None:
    lows = [run(model, partition="low", exclusive=True) for _ in range(4)]
    add(model, exclusive=True)
    [victim] = [each.job for each in schedule(model, NOW) if isinstance(each, PreemptJob)]
    model.jobs[victim].preempt_time = NOW
    assert not [each for each in schedule(model, NOW + 5) if isinstance(each, PreemptJob)]
    assert len(lows) == 4


def test_job_of_the_same_tier_is_never_preempted(model: Model) -> None:
    run(model, min_nodes=4, max_nodes=4, exclusive=True)
    add(model, partition="short", min_nodes=4, max_nodes=4)
    assert not [each for each in schedule(model, NOW) if isinstance(each, PreemptJob)]


def test_backfill_starts_a_short_job_early_but_not_a_long_one(model: Model) -> None:
    run(model, min_nodes=3, max_nodes=3, exclusive=True, minutes=10)
    add(model, min_nodes=4, max_nodes=4, exclusive=True, minutes=10)
    long, short = add(model, minutes=60), add(model, minutes=5)
    assert [each.job for each in schedule(model, NOW) if isinstance(each, StartJob)] == [short.id]
    assert reason(model, long) == "Priority"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"min_nodes": 9}, "PartitionNodeLimit"),
        ({"min_nodes": 33}, "PartitionConfig"),
        ({"cpus_per_task": 99}, "PartitionConfig"),
        ({"partition": "short", "minutes": 10}, "PartitionTimeLimit"),
        ({"dependency": "singleton", "name": "other"}, ""),
    ],
)
def test_scheduler_reports_a_pending_reason_only_for_jobs_over_a_limit(
    model: Model, asked: dict[str, object], expected: str
) -> None:
    job = add(model, **asked)
    waits = [each.reason for each in schedule(model, NOW) if isinstance(each, KeepPending) and each.job == job.id]
    assert waits == ([expected] if expected else [])


def test_impossible_job_does_not_block_jobs_behind_it(model: Model) -> None:
    add(model, min_nodes=9)
    assert placement(model, add(model)) == [("n1", 1)]


def test_job_requesting_a_down_node_is_pending_as_reqnodenotavail(model: Model) -> None:
    model.nodes["n2"].down = True
    assert reason(model, add(model, nodelist=["n2"])) == "ReqNodeNotAvail, UnavailableNodes:n2"
    assert placement(model, add(model, min_nodes=2, max_nodes=2)) == [("n3", 1), ("n4", 1)]  # side by side


def test_array_throttle_limits_the_number_of_started_elements(model: Model) -> None:
    job = add(model)
    job.array = Array(job.id, [0, 1, 2, 3], 4, 0, 3, 1, throttle=2)
    starts = [each.index for each in schedule(model, NOW) if isinstance(each, StartJob)]
    assert starts == [0, 1]
    assert reason(model, job) == "JobArrayTaskLimit"


def test_job_with_an_unsatisfiable_dependency_is_cancelled_only_on_request(model: Model) -> None:
    bad = add(model)
    bad.state, bad.start, bad.end = JobState.FAILED, NOW, NOW
    waits = add(model, dependency=f"afterok:{bad.id}")
    ends = add(model, dependency=f"afterok:{bad.id}", kill_on_invalid_dep=True)
    assert reason(model, waits) == "DependencyNeverSatisfied"
    assert CancelInvalid(ends.id) in schedule(model, NOW)


def test_schedule_leaves_the_model_unchanged(model: Model) -> None:
    run(model, partition="low", min_nodes=4, max_nodes=4, exclusive=True)
    add(model, exclusive=True)
    before = pickle.dumps(model)
    assert schedule(model, NOW) == schedule(model, NOW)
    assert pickle.dumps(model) == before


def test_list_of_numbers_of_nodes_allows_no_number_between(model: Model) -> None:
    job = add(model, min_nodes=1, max_nodes=4, node_counts=[1, 2, 4])
    assert len(placement(model, job)) == 4
    model.nodes["n4"].drain = True
    assert len(placement(model, job)) == 2


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"partition": "low,main"}, "main"),
        ({"partition": "short,main", "minutes": 30}, "main"),
        ({"partition": "low,short", "minutes": 1}, "short"),
        ({"partition": "short,low", "minutes": 30}, "low"),
    ],
)
def test_job_with_several_partitions_starts_in_the_highest_allowed_tier(
    model: Model, asked: dict[str, object], expected: str
) -> None:
    job = add(model, **asked)
    assert [each.partition for each in schedule(model, NOW) if isinstance(each, StartJob)] == [expected]
    assert job.desc.partition == asked["partition"]


def test_each_array_element_of_several_partitions_starts_once(model: Model) -> None:
    add(model, partition="low,main", exclusive=True)
    job = add(model, partition="low,main", exclusive=True)
    job.array = Array(job.id, [0, 1, 2, 3], 4, 0, 3, 1)
    decisions = schedule(model, NOW)
    assert [each.index for each in decisions if isinstance(each, StartJob)] == [None, 0, 1, 2]
    assert [each.job for each in decisions if isinstance(each, KeepPending)] == [job.id]


def test_last_partition_gives_the_reason_if_no_partition_allows_the_job(model: Model) -> None:
    model.partitions["main"].up = False
    assert reason(model, add(model, partition="main,short", minutes=30)) == "PartitionTimeLimit"
    assert reason(model, add(model, partition="short,main", minutes=30)) == "PartitionDown"
