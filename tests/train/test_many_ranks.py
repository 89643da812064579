"""Groups of more ranks than gloo connects each with each, and two groups one after the other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterdp.train.ranks.group import MESH_RANKS
from tests.train import programs
from tests.train.ranks import running


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("size", [MESH_RANKS + 4, pytest.param(64, marks=pytest.mark.slow)])
def test_lazy_group_opens_at_most_ten_sockets_on_each_rank(size: int, tmp_path: Path) -> None:
    with running(tmp_path, programs.lazily_connected, size=size) as ranks:
        first, *others = ranks.answers
    assert max(others) <= 10
    assert first <= size + 10  # rank 0 serves the store


@pytest.mark.parametrize("victim", [0, 8])
def test_death_of_a_rank_ends_the_others_of_a_lazy_group(victim: int, tmp_path: Path) -> None:
    size = MESH_RANKS + 1
    run = tmp_path / "run"
    (run / "attempts/7.0").mkdir(parents=True)
    with running(tmp_path / "logs", programs.one_dies_before_a_barrier, str(run), victim, size=size) as ranks:
        codes = ranks.join()
    assert codes.pop(victim) == -9
    assert set(codes) <= {1, 3}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_hang_leaves_a_flight_record_a_node_and_four_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "attempts/7.0").mkdir(parents=True)
    with running(tmp_path / "logs", programs.hangs_in_a_tree, 2, str(run), size=6) as ranks:
        assert set(ranks.join()) == {-9}
    records = [file.name for file in run.rglob("flight-record-*")]
    assert sorted(records) == ["flight-record-n0.pickle", "flight-record-n1.pickle"]
    others = {file.name for file in run.rglob("*") if file.is_file()}.difference(records)
    assert {"hung", "nodes"} <= others
    assert len(others) <= 4


def test_second_group_of_the_same_processes_shares_the_store(tmp_path: Path) -> None:
    with running(tmp_path, programs.starts_twice, size=2) as ranks:
        assert ranks.answers == [[1, 1], [1, 1]]
