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
LONGEST = 128 << 10  # bytes of a word or a variable on Linux
ENVIRON = {b"A": b"b", b"SLURM_NNODES": b"5", b"SLURM_JOB_NUM_NODES": b"5", b"SLURM_NTASKS_PER_NODE": b"2"}


def placement(names: list[str] = ALL, **rules: Any) -> Placement:
    slurm: Any = SimpleNamespace(expand=lambda text: names)
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


# -- a range of nodes --

RANGE: dict[str, Any] = {"nodes": 5, "spare_nodes": 0, "sizes": [2, 3, 4, 5], "in_place": True}


def test_ranks_of_a_range_start_on_all_nodes() -> None:
    found = placement(**RANGE)
    assert (found.nodes, found.size) == (ALL, 5)


def test_range_without_a_restart_in_place_has_no_placement() -> None:
    found = placement(**{**RANGE, "in_place": False})
    assert (found.nodes, found.size) == ([], 5)


@pytest.mark.parametrize(
    ("sizes", "bad", "nodes"),
    [
        ([2, 3, 4, 5], ["n2"], "n1,n3,n4,n5"),
        ([2, 3, 4, 5], ["n2", "n3", "n5"], "n1,n4"),
        ([2, 5], ["n2"], "n1,n3"),
    ],
)
def test_ranks_of_a_range_go_on_with_fewer_nodes(sizes: list[int], bad: list[str], nodes: str) -> None:
    found = placement(**{**RANGE, "sizes": sizes})
    assert found.replaceable(bad) == bad
    assert set(found.replace(bad, ALL).values()) == {""}
    assert (found.text, found.lost) == (nodes, {*bad})


def test_surplus_nodes_of_a_list_are_spare_ones() -> None:
    found = placement(**{**RANGE, "sizes": [2, 5]})
    found.replace(["n2"], ALL)
    assert found.nodes == ["n1", "n3"]
    assert found.replace(["n3"], ALL) == {"n3": "n4"}
    assert found.replace(["n1"], ALL) == {"n1": "n5"}
    with pytest.raises(LookupError):
        found.replace(["n4"], ALL)


def test_node_taken_by_slurm_leaves_the_range_smaller() -> None:
    found = placement(**RANGE)
    assert found.replace([], ["n1", "n3", "n4", "n5"]) == {"n2": ""}
    assert found.nodes == ["n1", "n3", "n4", "n5"]


def test_nodes_of_unreported_tasks_are_wordless() -> None:
    found = placement(**RANGE)
    slurm: Any = found._slurm
    assert found.nodes == ALL
    slurm.expand = {"n[1,3],n4": ["n1", "n3", "n4"], "": []}.get
    said = "srun: error: n[1,3]: tasks 0,2: Exited with exit code 1\nsrun: error: n4: task 3: Terminated\n"
    assert found.wordless(said) == ["n2", "n5"]
    assert found.wordless("srun: forcing job termination\n") == [], "srun's words are missing"


def test_range_below_its_least_keeps_its_places() -> None:
    found = placement(**RANGE)
    bad = ["n2", "n3", "n4", "n5"]
    with pytest.raises(LookupError, match="1 good node"):
        found.replace(bad, ALL)
    assert (found.nodes, found.replaceable(bad)) == (ALL, [])


def test_spare_node_of_a_range_comes_before_fewer_nodes() -> None:
    found = placement(**{**RANGE, "nodes": 4, "spare_nodes": 1})
    assert found.replace(["n2"], ALL) == {"n2": "n5"}
    assert found.replace(["n5"], ALL) == {"n5": ""}
    assert found.nodes == ["n1", "n3", "n4"]


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


def test_names_of_1024_nodes_fit_into_words_and_variables(record: Record) -> None:
    names = [f"nid{number:06}-hsn0.cluster" for number in range(1025)]
    found = placement(names, nodes=1024, spare_nodes=1, tasks_per_node=8)
    for bad in ([], names[:1]):
        found.replace(bad, names)
        words, environ = found.step(WORDS, ENVIRON, record)
        assert max(len(each) for each in (*words, *environ.values())) < LONGEST / 4  # several variables have them


def test_step_without_spare_nodes_stays_as_it_is(tmp_path: Path) -> None:
    record = Record(job(run=str(tmp_path)))
    assert placement(spare_nodes=0).step(WORDS, ENVIRON, record) == (WORDS, ENVIRON)


def test_srun_gets_the_sizes_of_the_nodes_left(record: Record) -> None:
    found = placement(**RANGE)
    found.replace(["n2"], ALL)
    words, environ = found.step(WORDS, ENVIRON, record)
    sizes = ["--nodes=4", "--ntasks=8", "--ntasks-per-node=2", "--distribution=block:block"]
    assert words == ["srun", "--nodelist=n1,n3,n4,n5", "--overlap", *sizes, "bash", "--nodes=9"]
    assert environ[b"CLUSTERDP_NODES"] == b"n1,n3,n4,n5"
    assert Path(record.job.here, "hosts").read_text().split()[::2] == ["n1", "n3", "n4", "n5"]


def test_srun_reads_another_order_of_fewer_nodes_from_a_file(record: Record) -> None:
    found = placement(**{**RANGE, "nodes": 4, "spare_nodes": 1})
    found.replace(["n2"], ALL)
    found.replace(["n3"], ALL)
    words, _ = found.step(WORDS, ENVIRON, record)
    assert words == ["srun", "--distribution=arbitrary", "--overlap", "--ntasks=6", "bash", "--nodes=9"]
    assert Path(record.job.here, "hosts").read_text().split()[::2] == ["n1", "n5", "n4"]


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({}, "on the same nodes"),
        ({"n2": "n4", "n1": "n5"}, "with n4 in place of n2, n5 in place of n1"),
        ({"n2": "", "n3": ""}, "on 3 node(s), without n2, n3"),
        ({"n2": "n4", "n3": ""}, "with n4 in place of n2, on 3 node(s), without n3"),
    ],
)
def test_places_of_the_next_attempt_are_words_for_people(replaced: dict[str, str], said: str) -> None:
    assert places(replaced, 3) == said
