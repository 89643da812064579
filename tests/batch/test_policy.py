"""Which nodes a job avoids, and on how many it goes on."""

from __future__ import annotations

import pytest

from clusterdp.batch.decide.policy import avoided, restarts_in_place, size_on
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.processes.children import Answer
from clusterdp.batch.processes.slurm import Slurm
from tests.batch.values import job

THREE = ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("wanted", "usable", "needed", "excluded"),
    [
        (["n3"], THREE, 2, "n3"),
        (["n3"], THREE, 3, ""),  # the partition has no further node
        (["n3"], ["n1", "n2"], 3, ""),  # n3 is down: the job starts when it is back
        (["n3"], ["n1", "n2"], 2, "n3"),
        (["n3", "n2"], ["n1", "n2"], 2, "n3"),  # n2 is the last one that the job needs
        (["n2", "n3"], ["n1", "n2"], 1, "n2,n3"),
        (["n3", "n2"], ["n1"], 2, ""),  # both are down
    ],
)
def test_avoided_node_is_never_needed_by_the_job(
    wanted: list[str], usable: list[str], needed: int, excluded: str
) -> None:
    assert avoided(wanted, usable, needed, "", []) == excluded
    assert avoided(wanted, usable, needed, "m1", []) == ",".join(filter(None, ["m1", excluded]))
    assert avoided(wanted, usable, needed, "", wanted) == "", "resources.nodelist has them"


ROWS = """idle n1 8|16000|(null)|(null)
idle~ n2 8|16000|(null)|(null)
mixed- n3 8|16000|(null)|(null)
idle* n4 8|16000|(null)|(null)
down* n5 8|16000|(null)|(null)
reserved n6 8|16000|(null)|(null)
idle n7 4|16000|(null)|(null)
maint n8 8|16000|(null)|(null)
drained n9 8|16000|(null)|(null)"""
RESERVATION = "ReservationName=mine StartTime=2026-01-01T00:00:00\n   Nodes=n[1,4,6] NodeCnt=3 CoreCnt=24"


class Cluster(Slurm):
    def ask(self, words: list[str], err: bool = True, limit_s: float | None = None) -> Answer:
        if words[1:3] == ["show", "reservation"]:
            return Answer(0, RESERVATION if words[3] == "mine" else "")
        if words[1:3] == ["show", "hostnames"]:
            return Answer(0, words[3].replace("n[1,4,6]", "n1,n4,n6").replace(",", "\n"))
        return Answer(0, "8|16000|(null)|(null)" if "--nodes=n1" in words else ROWS)


@pytest.mark.parametrize(("reservation", "usable"), [("", ["n1", "n2", "n3"]), ("mine", ["n1", "n6"]), ("another", [])])
def test_usable_nodes_are_up_and_in_the_reservation(reservation: str, usable: list[str]) -> None:
    slurm = Cluster(None, job(reservation=reservation))  # type: ignore[arg-type]
    assert slurm.usable_nodes("") == usable
    assert slurm.usable_nodes("n1") == [node for node in usable if node != "n1"]


@pytest.mark.parametrize(
    ("rules", "sizes"),
    [
        (Rules(nodes=2, spare_nodes=1), {1: 0, 2: 2, 3: 2}),
        (Rules(nodes=4, sizes=[2, 3, 4, 5]), {1: 0, 2: 2, 3: 3, 4: 4, 5: 4}),
        (Rules(nodes=4, sizes=[2, 4], spare_nodes=1), {1: 0, 3: 2, 4: 4, 5: 4}),
        (Rules(nodes=3, sizes=[2, 4]), {1: 0, 2: 2, 3: 3}),  # by sbatch --nodes=3 on the script
    ],
)
def test_ranks_go_on_on_the_largest_possible_number_of_nodes(rules: Rules, sizes: dict[int, int]) -> None:
    assert {nodes: size_on(nodes, rules) for nodes in sizes} == sizes


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(in_place=True), False),
        (Rules(in_place=True, spare_nodes=1), True),
        (Rules(in_place=True, sizes=[1, 2]), True),
        (Rules(in_place=False, sizes=[1, 2]), False),
    ],
)
def test_restart_after_a_lost_node_needs_a_spare_one_or_a_range(rules: Rules, expected: bool) -> None:
    assert restarts_in_place("node-lost", rules) is expected
