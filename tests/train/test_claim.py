"""The claim: two attempts that write into one run folder destroy each other's checkpoints."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.train.ranks.claim import Claim


def test_claim_is_newest_only_until_a_later_claim_is_taken(tmp_path: Path) -> None:
    first = Claim.take(tmp_path / "claims", "1.0", "aaaa")
    assert first.is_newest()
    second = Claim.take(tmp_path / "claims", "2.0", "bbbb")
    assert not first.is_newest()
    assert second.is_newest()
    assert (tmp_path / "claims" / "000001").read_text() == "1.0 aaaa\n"
    assert (tmp_path / "claims" / "000002").read_text() == "2.0 bbbb\n"
    assert len(list((tmp_path / "claims").iterdir())) == 2


def test_concurrent_claims_get_distinct_numbers_and_exactly_one_is_newest(tmp_path: Path) -> None:
    claims: list[Claim] = []
    together = threading.Barrier(8)

    def take(index: int) -> None:
        together.wait()
        claims.append(Claim.take(tmp_path, "1.0", str(index)))

    threads = [threading.Thread(target=take, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claim.number for claim in claims) == list(range(1, 9))
    assert sum(claim.is_newest() for claim in claims) == 1


def test_unwritable_claims_folder_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("a file where the folder should be")
    with pytest.raises(RunError, match="claims: cannot be claimed"):
        Claim.take(tmp_path / "claims", "1.0", "aaaa")
