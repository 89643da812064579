"""--json: what programs read out of it, in the manner of 22.05 and of 24.11, both recorded; the latter begins with
23.11.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
from clusterdp.fakeslurm.core.shape import Shape

from .conftest import Desk


def quick(version: str) -> FakeCluster:
    shape = Shape.simple(quick=True)
    return FakeCluster(shape=replace(shape, settings=replace(shape.settings, slurm_version=version)))


@pytest.fixture(scope="module")
def newer_cluster() -> Iterator[FakeCluster]:
    with quick("23.11.4") as cluster:
        yield cluster


@pytest.fixture
def newer(newer_cluster: FakeCluster, tmp_path: Path) -> Desk:
    return Desk(newer_cluster, tmp_path)


def ask(desk: Desk, line: str) -> Any:
    return json.loads(desk.say(line))


def test_squeue_and_sacct_json_describe_a_job_on_slurm_22_05(desk_22_05: Desk) -> None:
    job = desk_22_05.submit("--time=5", "--comment=hi", "-N2", "-n3", script="srun bash -c 'touch up; sleep 100'")
    desk_22_05.until((desk_22_05.folder / "up").exists)
    [found] = ask(desk_22_05, f"squeue --json -j {job}")["jobs"]
    expected = {"job_id": int(job), "job_state": "RUNNING", "time_limit": 5, "cpus": 3, "tasks": 3, "comment": "hi"}
    assert {name: found[name] for name in expected} == expected
    desk_22_05.say(f"scancel {job}")
    desk_22_05.cluster.wait(job)
    desk_22_05.until(lambda: "CANCELLED" in desk_22_05.say(f"sacct -X -n -o State%20 -j {job}"))
    [accounted] = ask(desk_22_05, f"sacct --json -j {job}")["jobs"]
    assert accounted["state"]["current"] == "CANCELLED"
    assert [step["step"]["id"] for step in accounted["steps"]] == ["batch", 0]


def test_sinfo_json_lists_nodes_with_cpus_and_gres_on_slurm_22_05(desk_22_05: Desk) -> None:
    nodes = ask(desk_22_05, "sinfo --json")["nodes"]
    assert [(node["name"], node["cpus"], node["gres"]) for node in nodes] == [
        (f"n{i}", 8, "gpu:2") for i in range(1, 5)
    ]


def test_slurm_23_11_json_has_states_as_lists_and_numbers_as_objects(newer: Desk) -> None:
    job = newer.submit(script="exit 3")
    newer.cluster.wait(job)
    [found] = ask(newer, f"scontrol --json show job {job}")["jobs"]
    assert found["job_state"] == ["FAILED"]
    assert found["exit_code"]["return_code"] == {"set": True, "infinite": False, "number": 3}
    assert found["time_limit"]["infinite"]
    newer.until(lambda: newer.say(f"sacct -X -n -o State -j {job}") == "FAILED")
    [accounted] = ask(newer, f"sacct --json -j {job}")["jobs"]
    assert accounted["state"]["current"] == ["FAILED"]


def test_slurm_job_end_time_is_set_on_slurm_23_11(newer: Desk) -> None:
    job = newer.submit("--time=2", script="echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))")
    newer.cluster.wait(job)
    assert newer.output(job) == "120\n"
    assert newer.say("sinfo --version") == "slurm-wlm 23.11.4"


RECORDED = {
    release: json.loads((Path(__file__).parent / f"json_of_{release}.json").read_text())
    for release in ("24.11", "26.05")
}


@pytest.fixture(scope="module", params=RECORDED)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The answers about a job like the recorded one, while it runs; sacct's when it was cancelled."""
    with quick(f"{request.param}.5") as cluster:
        desk = Desk(cluster, tmp_path_factory.mktemp("newest"))
        asked = ("--time=5", "--comment=hi", "-N2", "-n3", "--gres=gpu:1", "--job-name=running")
        job = desk.submit(*asked, script="srun bash -c 'touch up; sleep 100'")
        desk.until((desk.folder / "up").exists)
        found = {
            "squeue --json": ask(desk, f"squeue --json -j {job}"),
            "sinfo --json": ask(desk, "sinfo --json"),
            "scontrol --json show node": ask(desk, "scontrol --json show node n1"),
            "scontrol --json show partition": ask(desk, "scontrol --json show partition main"),
        }
        desk.say(f"scancel {job}")
        desk.until(lambda: desk.say(f"sacct -n -o State -j {job}").count("CANCELLED") == 3)  # and its steps
        yield found | {"recorded": RECORDED[request.param], "sacct --json": ask(desk, f"sacct --json -j {job}")}


def differences(expected: Any, got: Any, path: str = "") -> list[str]:
    """The places where keys or types differ; of lists the first elements count."""
    if isinstance(expected, dict) and isinstance(got, dict):
        missing = [f"{path}.{key}" for key in expected.keys() ^ got.keys()]
        both = expected.keys() & got.keys()
        return missing + [place for key in both for place in differences(expected[key], got[key], f"{path}.{key}")]
    if isinstance(expected, list) and isinstance(got, list):
        return differences(expected[0], got[0], f"{path}[]") if expected and got else []
    return [] if type(expected) is type(got) else [path]


@pytest.mark.parametrize("command", [key for key in RECORDED["24.11"] if key != "about"])
def test_json_has_the_keys_and_types_recorded_on_a_real_slurm(answers: dict[str, Any], command: str) -> None:
    assert differences(answers["recorded"][command], answers[command]) == []


def test_json_values_of_a_job_match_those_recorded_on_a_real_slurm(answers: dict[str, Any]) -> None:
    recorded = answers["recorded"]
    [expected], [got] = recorded["squeue --json"]["jobs"], answers["squeue --json"]["jobs"]
    same = """job_state state_reason nodes node_count cpus tasks time_limit tres_per_node tres_req_str tres_alloc_str
        exit_code derived_exit_code comment gres_detail batch_host hold requeue restart_cnt array_job_id""".split()
    assert {name: got[name] for name in same} == {name: expected[name] for name in same}
    [expected], [got] = recorded["sacct --json"]["jobs"], answers["sacct --json"]["jobs"]
    same = ["nodes", "state", "exit_code", "derived_exit_code", "tres", "allocation_nodes", "name"]
    assert {name: got[name] for name in same} == {name: expected[name] for name in same}


def test_sinfo_yaml_tags_each_value_with_its_type(desk_22_05: Desk) -> None:
    text = desk_22_05.say("sinfo --yaml")
    assert text.startswith("%YAML 1.1\n--- !!map\n!!str meta: !!map\n")
    assert '!!str name: !!str "n1"' in text


def test_unknown_slurm_release_is_refused_with_a_list_of_known_ones() -> None:
    with pytest.raises(FakeSlurmError, match=r"Choose one of 22\.05, "):
        FakeCluster(slurm_version="19.05")
    assert FakeCluster(slurm_version="24.05.1").exports()
