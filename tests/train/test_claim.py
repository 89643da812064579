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


def test_threads_of_a_rank_look_at_the_claim_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save of the best model failed while a thread deleted old checkpoints of the run."""
    claim = Claim.take(tmp_path, "1.0", "aaaa")
    unlink = Path.unlink

    def second_of_two(path: Path, missing_ok: bool = False) -> None:
        unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", second_of_two)
    assert claim.is_newest()


def test_unwritable_claims_folder_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("a file where the folder should be")
    with pytest.raises(RunError, match="claims: cannot be claimed"):
        Claim.take(tmp_path / "claims", "1.0", "aaaa")


@pytest.mark.parametrize(
    ("older", "newer"), [("7.0", "7.0.1"), ("7.0.9", "7.0.10"), ("7.0.3", "7.1"), ("7_2.0", "7_2.0.1")]
)
def test_late_claim_of_an_older_attempt_leaves_the_newer_in_possession(tmp_path: Path, older: str, newer: str) -> None:
    owner = Claim.take(tmp_path, newer, "aaaa")
    zombie = Claim.take(tmp_path, older, "bbbb")
    assert zombie.number > owner.number
    assert owner.is_newest()
    assert not zombie.is_newest()


def test_claim_of_the_next_attempt_overtakes_the_failed_one(tmp_path: Path) -> None:
    first = Claim.take(tmp_path, "7.0", "aaaa")
    second = Claim.take(tmp_path, "7.0.1", "bbbb")
    assert not first.is_newest()
    assert second.is_newest()
    other_job = Claim.take(tmp_path, "6.0", "cccc")  # job ids may wrap: between jobs, the number decides
    assert other_job.is_newest()
    assert not second.is_newest()
