"""After any history of a folder its newest good checkpoint is there, is whole, and is the one that is restored."""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clusterdp.checkpoint import Checkpointer, CheckpointError, ClaimLost, list_checkpoints
from clusterdp.checkpoint.format.layout import local_name, rank_name, slice_name
from clusterdp.storage import LocalStorage
from tests.checkpoint.training import Counter

STEPS = st.integers(0, 4)  # few: the same ones are saved again and again


class Flaky(LocalStorage):
    """Some files cannot be read just now."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.sick: set[str] = set()  # tokens

    def open(self, name: str, start: int = 0, stop: int | None = None) -> Any:
        self._look(name)
        return super().open(name, start, stop)

    def read(self, name: str, limit: int | None = None) -> bytes:
        self._look(name)
        return super().read(name, limit)

    def _look(self, name: str) -> None:
        if any(token in name for token in self.sick):
            raise OSError(errno.EIO, "Input/output error", name)


class Clock:
    """Commits are numbered by it after a read error, and every so-manyth number is kept: a history that is played
    again must find the same numbers."""

    def __init__(self) -> None:
        self._now = 10**9

    def time(self) -> float:
        self._now += 1
        return self._now

    def time_ns(self) -> int:
        return int(self.time() * 10**9)


@dataclass
class Made:
    """A commit, as the model knows it. Damaged ones stay in the model until they are pruned."""

    order: int
    step: int
    value: int
    files: str  # whose files it uses
    good: bool = True
    # What the attempt at work knows of it:
    listed: bool = False
    bad: bool = False
    unsure: bool = False


class History(RuleBasedStateMachine):
    """Saves, the same step twice, damage, read errors, new attempts with other limits, resumes from older steps, failed
    saves and lost claims, in any order, on a real folder."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("clusterdp.checkpoint.save.commit.time", Clock())
        # In memory where there is such a folder: thousands of fsyncs prove nothing here.
        self.folder = Path(tempfile.mkdtemp(dir=next(Path("/dev").glob("shm"), None)))
        self.storage = Flaky(self.folder)
        self.made: dict[str, Made] = {}
        self.order = self.value = 0
        self.pinned = ""
        self.x = Counter()
        self.claim = True
        self.start(2, None)

    def start(self, keep_last: int, keep_every: int | None) -> None:
        """A new process: it knows nothing of what the one before has found out."""
        self.keep_last, self.keep_every = keep_last, keep_every
        self.pinned = ""
        for one in self.made.values():
            one.listed = one.bad = one.unsure = False
        self.checkpointer = Checkpointer(
            self.storage,
            {"x": self.x},
            keep_last=keep_last,
            keep_every=keep_every,
            may_commit=lambda: self.claim,
        )

    def present(self) -> set[str]:
        return {info.token for info in list_checkpoints(self.folder)}

    def readable(self, step: int | None = None) -> list[str]:
        """Good ones that can be read now, the newest first."""
        good = [
            token
            for token, one in self.made.items()
            if one.good and not {token, one.files} & self.storage.sick and step in (None, one.step)
        ]
        return sorted(good, key=lambda token: -self.made[token].order)

    def look(self) -> None:
        """What a commit does first: it lists them."""
        for token, one in self.made.items():
            one.listed |= token not in self.storage.sick

    def fill(self, value: int) -> None:
        self.x.state = {"value": value, "t": torch.full((9,), value)}

    @rule(step=STEPS, beside=st.booleans())
    def save(self, step: int, beside: bool) -> None:
        self.value += 1
        self.fill(self.value)
        self.look()
        if beside:
            self.checkpointer.async_save(step)
            while (commit := self.checkpointer.step()) is None:
                pass
        else:
            commit = self.checkpointer.save(step)
        self.committed(commit.token)
        self.made[commit.token] = Made(self.order, step, self.value, commit.token, listed=True)
        self.pinned = ""  # it was read back
        self.retained(commit.token)

    def committed(self, token: str) -> None:
        (order,) = (info.order for info in list_checkpoints(self.folder) if info.token == token)
        assert order > self.order, "it is newer than all before it, those that could not be read included"
        self.order = order

    def retained(self, newest: str) -> None:
        """What is gone was to go, and what was to go is gone."""
        present = self.present()
        assert newest in present
        # One that is damaged and not known to be counts, so that the second newest good one may go; never the newest.
        counted = [t for t, one in self.made.items() if one.listed and not one.bad and not one.unsure]
        counted.sort(key=lambda token: self.made[token].order)
        last = counted[-self.keep_last :]
        stay = {*last, self.pinned}
        stay |= {t for t, one in self.made.items() if one.unsure or not one.listed}
        stay |= {t for t in counted if self.keep_every and self.made[t].order % self.keep_every == 0}
        stay |= {t for t, one in self.made.items() if one.order >= self.made[last[0]].order}
        full = len(counted) > self.keep_last
        expected = {t for t in self.made if t in stay or not full}
        assert present == expected, "retention"
        self.made = {token: one for token, one in self.made.items() if token in present}

    @precondition(lambda self: self.readable())
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A bit of any of its files."""
        token = data.draw(st.sampled_from(self.readable()))
        source = self.made[token].files
        name = data.draw(st.sampled_from([slice_name(source, 0, 1), rank_name(source, 0), local_name(source, 0)]))
        (path,) = self.folder.rglob(name)
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, 9999)) % len(content)] ^= 4  # not of one length: it says when it was saved
        path.write_bytes(content)
        for one in self.made.values():
            one.good &= one.files != source

    @precondition(lambda self: self.readable() and not self.storage.sick)
    @rule(data=st.data())
    def cannot_be_read_for_now(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.readable()))
        self.storage.sick = {token}

    @precondition(lambda self: self.storage.sick)
    @rule()
    def can_be_read_again(self) -> None:
        self.storage.sick = set()

    @rule(
        keep_last=st.integers(1, 3),
        keep_every=st.none() | st.integers(2, 4),
        step=st.none() | STEPS,
        retire_later=st.booleans(),
    )
    def new_attempt(self, keep_last: int, keep_every: int | None, step: int | None, retire_later: bool) -> None:
        """It goes on from the newest, or from `step`, which it may make the newest."""
        self.start(keep_last, keep_every)
        self.fill(-1)
        expected = self.readable(step)
        if not expected:
            if self.made or step is not None:
                with pytest.raises(CheckpointError, match=r"none is good|no checkpoint of step"):
                    self.checkpointer.restore(step)
            else:
                assert self.checkpointer.restore() is None
            self.start(keep_last, keep_every)
            return
        heads = {t: one.order for t, one in self.made.items() if t not in self.storage.sick}
        restored = self.checkpointer.restore(step, retire_later=retire_later)
        assert restored is not None
        source = self.made[expected[0]]
        assert (restored.step, self.x.state["value"]) == (source.step, source.value), "the newest good one"
        assert self.x.state["t"].tolist() == [source.value] * 9
        anew = retire_later and step is not None and expected[0] != max(heads, key=lambda token: heads[token])
        assert (restored.token != expected[0]) == anew
        for token, one in self.made.items():
            if token in heads and step in (None, one.step) and one.order > source.order:
                one.unsure = one.files in self.storage.sick
                one.bad = not one.unsure
        if anew:
            self.look()
            self.committed(restored.token)
            self.made[restored.token] = Made(self.order, source.step, source.value, source.files)  # listed by the next
        self.pinned = restored.token

    @rule(step=STEPS)
    def a_save_that_fails(self, step: int) -> None:
        """The disk is full when the manifest is to be written."""
        self.look()
        before = sorted(self.folder.rglob("*"))
        publish = self.storage.publish
        self.storage.publish = full  # type: ignore[method-assign]
        with pytest.raises(CheckpointError, match="No space left"):
            self.checkpointer.save(step)
        self.storage.publish = publish  # type: ignore[method-assign]
        assert sorted(self.folder.rglob("*")) == before

    @rule(step=STEPS)
    def lose_the_claim(self, step: int) -> None:
        self.claim = False
        self.look()
        before = sorted(self.folder.rglob("*"))
        with pytest.raises(ClaimLost):
            self.checkpointer.save(step)
        assert sorted(self.folder.rglob("*")) == before
        self.claim = True

    @invariant()
    def all_that_is_committed_is_there_and_has_its_files(self) -> None:
        present = {info.token: info for info in list_checkpoints(self.folder)}
        assert present.keys() == self.made.keys()
        for token, info in present.items():
            assert (info.order, info.step) == (self.made[token].order, self.made[token].step)
            for name in (slice_name(info.data, 0, 1), rank_name(info.data, 0), local_name(info.data, 0)):
                assert (self.folder / info.folder / name).exists(), f"{info.name} without its {name}"

    @invariant()
    def what_it_came_from_is_there(self) -> None:
        assert not self.pinned or self.pinned in self.present()

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        self.patch.undo()
        shutil.rmtree(self.folder)


def full(name: str, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestHistory(History.TestCase):  # type: ignore[name-defined, misc, valid-type]
    # A history is short enough to be read as it is: to shrink it takes longer than a test may.
    settings = settings(max_examples=15, stateful_step_count=20, deadline=None, phases=[Phase.explicit, Phase.generate])


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestManyHistories(History.TestCase):  # type: ignore[name-defined, misc, valid-type]
    settings = settings(max_examples=500, stateful_step_count=40, deadline=None)
