"""The ranks agree through their nodes' agents, and learn through them that one of them has failed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore

from clusterdp.train.process.attempt import follows
from clusterdp.train.ranks import node_agent
from clusterdp.train.ranks.control import LostRanks
from tests.train import programs
from tests.train.ranks import running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize(("nodes", "size"), [(1, 2), (3, 7), (10, 20)])
def test_ranks_of_several_nodes_agree_on_all_values(nodes: int, size: int, tmp_path: Path) -> None:
    with running(tmp_path, programs.agrees_in_a_tree, nodes, size=size) as ranks:
        answers = ranks.answers
    for rank, answer in enumerate(answers):
        assert (answer["most"], answer["least"]) == ([size - 1, 0], [0, 1 - size])
        assert [(part["rank"], len(part["text"])) for part in answer["gathered"]] == [
            (rank, 50_000 * (rank % 2)) for rank in range(size)
        ]
        assert answer["numbers"] == ([[rank, 2 * rank] for rank in range(size)] if rank == 0 else None)
        assert answer["files"] == sum(range(size))
        assert answer["equal"] == [True, False]


FAILURES = {
    "rank": "rank 3: its process has ended",
    "agent": "rank [23]: the agent of n1 has ended, or cannot be reached",
    "stopped agent": "rank [23]: the agent of n1 (has ended|is stopped), or cannot be reached",
    "error": "rank 3: ValueError: a bad .2J sample",
    "end": "rank 3 has ended",
}


@pytest.mark.parametrize("what", FAILURES)
def test_lost_rank_or_agent_fails_the_agreements_of_all_ranks(what: str, tmp_path: Path) -> None:
    with running(tmp_path, programs.loses, what, 3, size=6) as ranks:
        codes = ranks.join()
        files = [ranks.folder / f"answer-{rank}" for rank in range(6)]
        answers = [json.loads(file.read_text()) if file.exists() else None for file in files]
    assert codes == [0, 0, 0, -9 if what == "rank" else 0, 0, 0]
    for rank in (0, 1, 2, 4, 5):
        kind, said, _ = answers[rank]
        lacks_its_own = "agent" in what and rank == 2
        expected = "rank 2: the agent of this node has ended" if lacks_its_own else FAILURES[what]
        assert kind == "LostRanks"
        assert re.fullmatch(f"Connection closed: {expected}", said)


def test_lost_ranks_count_as_the_failure_of_another() -> None:
    assert follows(LostRanks("Connection closed: rank 3: ValueError: a bad sample"))


def test_key_of_another_run_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "attempts" / "7.0" / "key"
    with running(tmp_path / "logs", programs.has_another_key, str(file), size=2) as ranks:
        codes = ranks.join()
    assert 0 not in codes
    assert f"{file}-of-another-run: not the key that rank 0 has written" in ranks.rank_log(1)
    assert "the nodes' agents have not met in 5 s" in ranks.rank_log(0)


def test_key_is_private_and_new_at_each_start(tmp_path: Path) -> None:
    file, keys = tmp_path / "attempts" / "7.0" / "key", []
    before = os.umask(0)
    try:
        for _ in range(2):
            store = HashStore()
            keys.append(node_agent._publish_key(store, file))
            assert file.stat().st_mode & 0o777 == 0o600
            assert keys[-1].encode() not in store.get(f"{node_agent.PREFIX}key")
            assert node_agent._key_of_rank_0(store, file) == keys[-1]
    finally:
        os.umask(before)
    assert keys[0] != keys[1]


def test_key_is_in_the_store_if_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("not a folder")
    file, store = tmp_path / "attempts" / "key", HashStore()
    assert node_agent._key_of_rank_0(store, file) if node_agent._publish_key(store, file) else False


def test_truncated_symlinked_or_fifo_key_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"short")
    assert node_agent._read_key_file(path) is None
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    path.unlink()
    path.symlink_to("elsewhere")
    assert node_agent._read_key_file(path) is None
    path.unlink()
    os.mkfifo(path)
    assert node_agent._read_key_file(path) is None
