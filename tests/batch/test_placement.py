"""The nodes of the ranks in a job with spare nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.batch.files.record import Record
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.nodes.placement import Placement, places
from tests.batch.values import job

ALL = ["n1", "n2", "n3", "n4", "n5"]
WORDS = ["srun", "--nodes=3", "--ntasks=6", "--ntasks-per-node=2", "--distribution=block:block", "bash", "--nodes=9"]
ENVIRON = {b"A": b"b", b"SLURM_NNODES": b"5", b"SLURM_JOB_NUM_NODES": b"5", b"SLURM_NTASKS_PER_NODE": b"2"}


def placement(nodes: list[str] = ALL, **rules: Any) -> Placement:
    slurm: Any = SimpleNamespace(expand=lambda text: nodes)
    return Placement(job(nodes="n[1-5]"), Rules(**{"nodes": 3, "spare_nodes": 2, "tasks_per_node": 2, **rules}), slurm)


def test_ranks_start_on_the_first_nodes() -> None:
    found = placement()
    assert (found.nodes, found.text, found.lost) == (["n1", "n2", "n3"], "n1,n2,n3", set())


def test_spare_nodes_take_the_places_of_bad_ones() -> None:
    found = placement()
    assert found.replace(["n2"], ALL) == {"n2": "n4"}
    assert found.nodes == ["n1", "n4", "n3"]
    assert found.replace(["n1"], ALL) == {"n1": "n5"}
    assert found.nodes == ["n5", "n4", "n3"]
    assert found.lost == {"n1", "n2"}


def test_node_without_its_job_gives_its_place() -> None:
    found = placement()
    assert found.replace(["n4"], ["n1", "n3", "n4", "n5"]) == {"n2": "n5"}, "n4 is bad, too"
    assert found.nodes == ["n1", "n5", "n3"]


def test_bad_spare_node_changes_no_place() -> None:
    found = placement()
    assert found.replace(["n4"], ALL) == {}
    assert found.replace(["n3"], ALL) == {"n3": "n5"}


@pytest.mark.parametrize("left", [ALL, ["n1", "n2", "n3", "n5"]])
def test_places_stay_if_too_few_spare_nodes_are_left(left: list[str]) -> None:
    found = placement()
    with pytest.raises(LookupError):
        found.replace(["n1", "n2", "n3"] if left == ALL else ["n1", "n2"], left)
    assert (found.nodes, found.lost) == (["n1", "n2", "n3"], set())


def test_job_without_spare_nodes_replaces_none() -> None:
    found = placement(spare_nodes=0)
    with pytest.raises(LookupError):
        found.replace(["n1"], ALL)
    assert (found.nodes, found.text, found.replaceable(["n1"])) == ([], "n[1-5]", [])


def test_silent_nodes_are_replaceable_while_spare_ones_beat() -> None:
    found = placement()
    assert found.replaceable(["n1", "n3"]) == ["n1", "n3"]
    assert found.replaceable(["n1", "n4"]) == ["n1"]
    assert found.replaceable(["n1", "n3", "n4"]) == []
    assert found.replaceable(["n4"]) == []


def test_missing_names_of_the_nodes_raise_an_error() -> None:
    with pytest.raises(OSError, match=r"scontrol show hostnames n\[1-5\]"):
        _ = placement([]).nodes


@pytest.fixture
def record(tmp_path: Path) -> Record:
    found = Record(job(run=str(tmp_path), nodes="n[1-5]"))
    Path(found.job.here).mkdir(parents=True)
    return found


def test_srun_gets_the_sorted_nodes_of_the_ranks(record: Record) -> None:
    found = placement()
    words, environ = found.step(WORDS, ENVIRON, record)
    assert words == ["srun", "--nodelist=n1,n2,n3", *WORDS[1:]]
    assert environ == {**ENVIRON, b"CLUSTERDP_NODES": b"n1,n2,n3"}
    found.replace(["n3"], ALL)
    words, _ = found.step(WORDS, ENVIRON, record)
    assert words == ["srun", "--nodelist=n1,n2,n4", "--overlap", *WORDS[1:]]


def test_srun_reads_another_order_of_the_nodes_from_a_file(record: Record) -> None:
    found = placement()
    found.replace(["n2"], ALL)
    words, environ = found.step(WORDS, ENVIRON, record)
    assert words == ["srun", "--distribution=arbitrary", "--overlap", "--ntasks=6", "bash", "--nodes=9"]
    hosts = f"{record.job.here}/hosts"
    assert environ == {b"A": b"b", b"SLURM_HOSTFILE": hosts.encode(), b"CLUSTERDP_NODES": b"n1,n4,n3"}
    assert Path(hosts).read_text().split() == ["n1", "n1", "n4", "n4", "n3", "n3"]


def test_step_without_spare_nodes_stays_as_it_is(tmp_path: Path) -> None:
    record = Record(job(run=str(tmp_path)))
    assert placement(spare_nodes=0).step(WORDS, ENVIRON, record) == (WORDS, ENVIRON)


def test_places_of_the_next_attempt_are_words_for_people() -> None:
    assert places({}) == "on the same nodes"
    assert places({"n2": "n4", "n1": "n5"}) == "with n4 in place of n2, n5 in place of n1"
