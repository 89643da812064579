"""SIGKILL at random instants of the save: the newest committed checkpoint always loads, a torn one never does."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, Commit, LostContact
from clusterdp.checkpoint.format.layout import token_of_file, token_of_manifest
from tests.checkpoint.gang import Gang, on_ranks
from tests.checkpoint.training import Counter
from tests.waiting import wait_for


def state(step: int) -> Counter:
    counter = Counter()
    counter.state = {"step": step, "tensor": torch.full((400_000,), float(step)), "last": torch.full((5,), step)}
    return counter


def restore(folder: str, counter: Counter) -> int:
    """The step that it goes on from, with all its values; what is committed is never bad."""
    restored = Checkpointer(folder, {"x": counter}).restore()
    if restored is None:
        return 0
    assert restored.skipped == ()
    values = {restored.step, counter.state["step"], *counter.state["tensor"].unique().tolist()}
    assert values | set(counter.state["last"].tolist()) == {restored.step}
    return restored.step


def keep_saving(rank: int, size: int, folder: str, log: str, beside: bool) -> None:
    def note(commit: Commit) -> None:
        with Path(log).open("a") as file:
            file.write(f"{commit.step}\n")

    x = state(0)
    step = restore(folder, x)
    checkpointer = Checkpointer(folder, {"x": x}, keep_last=2, on_commit=note)
    while True:
        step += 1
        x.load_state_dict(state(step).state)
        if not beside:
            checkpointer.save(step)
            continue
        checkpointer.async_save(step)
        while checkpointer.step() is None:
            pass


def last_commit(log: Path) -> int:
    lines = log.read_text().split("\n") if log.exists() else [""]
    return int(lines[-2]) if len(lines) > 1 else 0


def torn_saves(folder: Path) -> set[str]:
    names = [path.name for path in folder.rglob("*")]
    return {t for n in names if (t := token_of_file(n))} - {t for n in names if (t := token_of_manifest(n))}


def storm(folder: Path, trials: range) -> set[str]:
    """Kill one rank, or all, again and again; returns the tokens of the saves that were torn."""
    torn: set[str] = set()
    log, checkpoints = folder / "log", folder / "checkpoints"
    for seed in trials:
        rng = random.Random(seed)
        before = last_commit(log)
        size, beside = rng.choice([2, 3, 4]), rng.random() < 0.5
        with Gang(size, keep_saving, str(checkpoints), str(log), beside) as gang:
            deadline = time.monotonic() + 60
            while last_commit(log) <= before:  # it has resumed, and saves
                assert time.monotonic() < deadline, "no commit"
                assert all(process.is_alive() for process in gang.processes), gang.results()
                time.sleep(0.002)
            time.sleep(rng.random() * 0.1)  # the instant is what is random here
            victims = rng.choice([gang.processes, [rng.choice(gang.processes)]])
            for process in victims:
                os.kill(process.pid or 0, signal.SIGKILL)
            gang.join()  # those that are left lose contact, and end
        committed = last_commit(log)
        torn |= torn_saves(checkpoints)
        counter = Counter()
        assert restore(str(checkpoints), counter) >= committed > before, (
            f"seed {seed}: a commit was lost ({size} ranks, {beside=})"
        )
    return torn


def test_sigkill_at_a_random_instant_never_loses_a_committed_checkpoint(tmp_path: Path) -> None:
    assert storm(tmp_path, range(10)), "no kill has hit a save"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_sigkills_at_random_instants_never_lose_a_committed_checkpoint(tmp_path: Path) -> None:
    assert len(storm(tmp_path, range(100, 600))) > 50, "too few kills have hit a save"


def outlive(rank: int, size: int, folder: str) -> None:
    x = state(1)
    checkpointer = Checkpointer(folder, {"x": x})
    checkpointer.save(1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(LostContact, match="Another rank failed first"):
        checkpointer.save(2)


def test_save_raises_lostcontact_instead_of_hanging_if_another_rank_was_killed(tmp_path: Path) -> None:
    with Gang(2, outlive, str(tmp_path)) as gang, pytest.raises(AssertionError) as caught:
        gang.results()
    assert str(caught.value).startswith("rank 1: it died"), "and rank 0 was told"
    assert on_ranks(1, _restored_step, str(tmp_path)) == [1]


def _restored_step(rank: int, size: int, folder: str) -> int:
    return restore(folder, Counter())


def save_once_more(rank: int, size: int, folder: str) -> None:
    checkpointer = Checkpointer(folder, {"x": state(1)})
    checkpointer.save(1)
    told = Path(folder, "told")
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(LostContact):
        checkpointer.save(2)
    if rank == 2:
        wait_for("rank 1", told.exists, 60)
        return
    with pytest.raises(LostContact):
        checkpointer.save(2)
    told.touch()


def test_second_save_after_lostcontact_fails_without_waiting_for_any_rank(tmp_path: Path) -> None:
    with Gang(3, save_once_more, str(tmp_path)) as gang, pytest.raises(AssertionError) as caught:
        gang.results(timeout=30)
    assert str(caught.value) == "rank 0: it died without an answer"
