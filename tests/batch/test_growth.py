"""Growth: a run asks for more nodes only if they have been idle for long, and nobody else waits for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterdp.batch.act import growth
from clusterdp.batch.act.growth import Growth
from clusterdp.batch.files.job import LOADED, Job
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.nodes.placement import Placement
from clusterdp.batch.processes.slurm import Slurm
from tests.batch.values import job

LOOK_S = 30.0


class Partition:
    """The answers about the nodes of the partition, one for each look: those that are idle, and whether jobs wait."""

    def __init__(self, *looks: tuple[int, bool]):
        self.looks = list(looks)
        self.never = ""

    def usable_nodes(self, never: str, states: tuple[str, ...]) -> list[str]:
        assert states == ("idle",)
        self.never = never
        return [f"n{number}" for number in range(self.looks[0][0])]

    def has_waiting(self) -> bool:
        return self.looks[0][1]


def placement(rules: Rules, lost: int = 0) -> Placement:
    """Of a job whose last nodes are lost."""
    nodes = [f"n{i}" for i in range(1, rules.nodes + 1)]
    found = Placement(job(nodes="n"), rules, cast(Slurm, SimpleNamespace(expand=lambda text: nodes)))
    if lost:
        found.replace(nodes[-lost:], nodes)
    return found


def sizes(
    folder: Path, rules: Rules, partition: Partition, monkeypatch: pytest.MonkeyPatch, lost: int = 0
) -> list[int]:
    """What each look returns, one every 30 s."""
    now = [0.0]
    monkeypatch.setattr(growth, "time", SimpleNamespace(monotonic=lambda: now[0]))
    here = cast(Job, SimpleNamespace(file=lambda name: str(folder / name), node_count=rules.nodes))
    grows = Growth(rules, here, cast(Slurm, partition), placement(rules, lost), ["n5"])
    found = []
    while partition.looks:
        found.append(grows.look())
        partition.looks.pop(0)
        now[0] += LOOK_S
    return found


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    (tmp_path / LOADED).touch()
    return tmp_path


RULES = Rules(nodes=2, sizes=[2, 4, 8], in_place=True, grow_after_s=60)


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(2, False)] * 3, [0, 0, 4]),
        ([(6, False)] * 3, [0, 0, 8]),
        ([(1, False)] * 4, [0, 0, 0, 0]),  # three nodes are no number of the list
        ([(2, False), (0, False), (2, False), (2, False), (2, False)], [0, 0, 0, 0, 4]),
        ([(2, False), (2, True), (2, False), (2, False), (2, False)], [0, 0, 0, 0, 4]),
    ],
)
def test_growth_needs_idle_nodes_and_no_waiting_job_all_the_time(
    looks: list[tuple[int, bool]], expected: list[int], loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sizes(loaded, RULES, Partition(*looks), monkeypatch) == expected


def test_growth_waits_for_ranks_with_their_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(tmp_path, RULES, Partition(*[(2, False)] * 4), monkeypatch) == [0, 0, 0, 0]


def test_growth_leaves_out_avoided_nodes(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (loaded / "avoid").write_text("n3 n4\n")
    partition = Partition((2, False))
    sizes(loaded, RULES._replace(exclude="m1"), partition, monkeypatch)
    assert partition.never == "m1,n3,n4,n5"


@pytest.mark.parametrize(("idle", "size"), [(0, 0), (1, 4), (4, 4), (5, 8)])
def test_growth_after_a_loss_counts_the_nodes_left(
    idle: int, size: int, loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Partition(*[(idle, False)] * 3)
    assert sizes(loaded, RULES._replace(nodes=4), looks, monkeypatch, lost=1) == [0, 0, size]


@pytest.mark.parametrize(
    ("rules", "lost", "wanted"),
    [
        (RULES, 0, True),
        (RULES._replace(nodes=8), 0, False),
        (RULES._replace(nodes=8), 1, True),
        (RULES._replace(grow_after_s=None), 0, False),
        (Rules(), 0, False),
    ],
)
def test_growth_is_wanted_below_the_largest_number_of_nodes(rules: Rules, lost: int, wanted: bool) -> None:
    assert Growth(rules, cast(Job, None), cast(Slurm, None), placement(rules, lost), ()).is_wanted is wanted
