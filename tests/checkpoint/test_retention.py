"""Retention: what it may delete, and that after any history the newest good checkpoint is still there and is used."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clusterdp.checkpoint import Checkpointer, ClaimLost, list_checkpoints
from clusterdp.checkpoint.layout import slice_name
from clusterdp.checkpoint.manifest import CheckpointInfo
from clusterdp.checkpoint.retention import doomed
from tests.checkpoint.training import Counter


def commits(count: int) -> list[CheckpointInfo]:
    return [CheckpointInfo(100 - n, f"{n:012x}-0001", f"{n:012x}-0001", n, 0.0, 1, 1, "") for n in range(1, count + 1)]


numbers = st.sets(st.integers(1, 12))


@given(st.integers(0, 12), st.integers(1, 5), st.none() | st.integers(1, 5), numbers, numbers, numbers)
def test_what_is_doomed_is_never_among_what_must_stay(
    count: int, keep_last: int, keep_every: int | None, bad: set[int], unsure: set[int], pinned: set[int]
) -> None:
    def tokens(orders: set[int]) -> set[str]:
        return {f"{n:012x}-0001" for n in orders}

    victims = doomed(
        commits(count), keep_last, keep_every, bad=tokens(bad), unsure=tokens(unsure), pinned=tokens(pinned)
    )
    gone = {info.order for info in victims}
    good = [n for n in range(1, count + 1) if n not in bad | unsure]
    newest = set(good[-keep_last:])
    assert not gone & (newest | unsure | pinned)
    assert not gone & {n for n in good if keep_every and n % keep_every == 0}
    # And nothing else stays, but what is newer than the oldest of the newest.
    stay = newest | unsure | pinned | {n for n in good if keep_every and n % keep_every == 0}
    if len(good) > keep_last:
        assert gone == {n for n in range(1, min(newest)) if n not in stay}
    else:
        assert not gone


class History(RuleBasedStateMachine):
    """Saves, damage, new attempts, resumes from older steps and lost claims, in any order, on a real folder."""

    keep_last, keep_every = 2, 4

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a folder: thousands of fsyncs prove nothing here.
        self.folder = Path(tempfile.mkdtemp(dir=next(Path("/dev").glob("shm"), None)))
        self.good: dict[str, tuple[int, int]] = {}  # token -> (order, value); undamaged, and not deleted
        self.files: dict[str, str] = {}  # token -> whose files it uses
        self.order = 0
        self.value = 0
        self.pinned = ""
        self.x = Counter()
        self.claim = True
        self.start()

    def start(self) -> None:
        self.claim = True
        self.checkpointer = Checkpointer(
            self.folder, {"x": self.x}, keep_last=2, keep_every=4, may_commit=lambda: self.claim
        )

    def newest(self) -> str:
        return max(self.good, key=lambda token: self.good[token][0])

    @rule(step=st.integers(0, 5))
    def save(self, step: int) -> None:
        self.value += 1
        self.x.state = {"value": self.value, "t": torch.full((9,), self.value)}
        commit = self.checkpointer.save(step)
        self.order += 1
        self.good[commit.token] = (self.order, self.value)
        self.files[commit.token] = commit.token
        self.pinned = ""
        present = {info.token for info in list_checkpoints(self.folder)}
        # Of good ones only those may be gone that retention does not keep. (One that is damaged and not yet known to
        # be may count among the newest, so that the second newest good one can go, but never the newest.)
        gone = set(self.good) - present
        assert commit.token in present
        assert all(self.good[token][0] % self.keep_every for token in gone), "every m-th stays"
        assert all(self.good[token][0] <= self.order - self.keep_last for token in gone), "the newest stay"
        for token in gone:
            del self.good[token]

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.good, key=lambda t: self.good[t])))
        source = self.files[token]
        (path,) = self.folder.rglob(slice_name(source, 0, 1))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 4
        path.write_bytes(content)
        for other in [t for t in self.good if self.files[t] == source]:
            del self.good[other]

    @precondition(lambda self: self.good)
    @rule()
    def new_attempt(self) -> None:
        self.start()
        restored = self.checkpointer.restore()
        assert restored is not None
        self.pinned = restored.token
        assert restored.token == self.newest()
        assert self.x.state["value"] == self.good[restored.token][1]
        assert self.x.state["t"].tolist() == [self.x.state["value"]] * 9

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def go_on_from_an_older_step(self, data: st.DataObject) -> None:
        infos = {info.token: info for info in list_checkpoints(self.folder)}
        token = data.draw(st.sampled_from(sorted(self.good, key=lambda t: self.good[t])))
        step = infos[token].step
        expected = max((t for t in self.good if infos[t].step == step), key=lambda t: self.good[t][0])
        self.start()
        restored = self.checkpointer.restore(step, retire_later=True)
        assert restored is not None
        assert self.x.state["value"] == self.good[expected][1]
        self.pinned = restored.token
        if restored.token != expected:
            self.order += 1
            self.good[restored.token] = (self.order, self.good[expected][1])
            self.files[restored.token] = self.files[expected]

    @rule()
    def lose_the_claim(self) -> None:
        self.claim = False
        before = sorted(self.folder.rglob("*"))
        try:
            self.checkpointer.save(9)
        except ClaimLost:
            assert sorted(self.folder.rglob("*")) == before
        else:
            raise AssertionError("it saved without the claim")
        self.claim = True

    @invariant()
    def every_good_one_is_there_with_all_its_files(self) -> None:
        present = {info.token: info for info in list_checkpoints(self.folder)}
        for token in self.good:
            assert token in present
            assert (self.folder / present[token].folder / slice_name(self.files[token], 0, 1)).exists()

    @invariant()
    def what_it_came_from_is_there(self) -> None:
        assert not self.pinned or self.pinned in {info.token for info in list_checkpoints(self.folder)}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


History.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestHistory = History.TestCase
