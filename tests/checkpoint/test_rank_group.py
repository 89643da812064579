"""Several ranks save and restore as one: exactly, on any number of ranks, all or none."""

from __future__ import annotations

import errno
import logging
import re
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from clusterdp.checkpoint import Checkpointer, CheckpointError, ClaimLost, StateError, list_checkpoints
from clusterdp.checkpoint.state.rank_group import FRAME, RankGroup
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.training import Counter, Training, digest

WIDE = 400  # three times 400 x 400 weights are 1.9 MB of gradients: more than DDP's first bucket


def uninterrupted(rank: int, size: int, folder: str, adam: bool) -> tuple[list[float], str]:
    training = Training(seed=rank, width=WIDE, adam=adam, ddp=True)
    training.warm_up()
    checkpointer = Checkpointer(folder, training.state)
    assert checkpointer.restore() is None
    losses = []
    for step in range(1, 9):
        losses.append(training.step())
        if step == 4:
            checkpointer.save(step, {"epoch": 1})
    return losses[4:], training.digest()


def resumed(rank: int, size: int, folder: str, adam: bool) -> tuple[list[float], str]:
    training = Training(seed=100 + rank, width=WIDE, adam=adam, ddp=True)
    training.warm_up()
    checkpointer = Checkpointer(folder, training.state)
    restored = checkpointer.restore()
    assert restored is not None
    assert (restored.step, restored.meta, restored.exact, restored.skipped) == (4, {"epoch": 1}, True, ())
    checkpointer.restore_rng()
    return [training.step() for _ in range(4)], training.digest()


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "adam"])
def test_four_ddp_ranks_resume_bit_for_bit_with_dropout_and_fp16(tmp_path: Path, adam: bool) -> None:
    expected = on_ranks(4, uninterrupted, str(tmp_path), adam)
    assert on_ranks(4, resumed, str(tmp_path), adam) == expected
    assert len({losses[0] for losses, _ in expected}) == 4, "ranks that all do the same prove nothing about their RNG"


def agrees(rank: int, size: int, lengths: list[int]) -> list[tuple[int, str]]:
    """For each length of the last rank's report, the number of collectives, and the error of ranks that all fail."""
    group, calls, seen = RankGroup(), [0], []

    def counted(call: Any) -> Any:
        def collective(*words: Any, **named: Any) -> Any:
            calls[0] += 1
            return call(*words, **named)

        return collective

    dist.gather, dist.broadcast = counted(dist.gather), counted(dist.broadcast)
    for length in lengths:
        calls[0] = 0
        assert group.agree(report="x" * length if rank == size - 1 else "", conclude="".join) == "x" * length
        count = calls[0]
        try:
            group.agree(StateError(f"{length}" + "z" * length))
        except StateError as error:
            seen.append((count, str(error)))
    return seen


def test_agreement_takes_two_collectives_unless_a_message_is_long() -> None:
    lengths = [0, FRAME - 40, FRAME + 1, 100_000]
    answers = on_ranks(3, agrees, lengths)
    assert answers == answers[:1] * 3
    assert [count for count, _ in answers[0]] == [2, 2, 5, 5]
    errors = ["; ".join(f"rank {rank}: {length}{'z' * length}" for rank in range(3)) for length in lengths]
    assert [error for _, error in answers[0]] == errors


def save_numbers(rank: int, size: int, folder: str) -> None:
    torch.manual_seed(rank)
    Checkpointer(folder, numbers(fill=1.0)).save(7)


def numbers(fill: float) -> dict[str, Any]:
    state, own = Counter(), Counter(per_rank=True)
    state.state = {"a": torch.full((1001,), fill), "b": torch.arange(5000) * fill, "c": torch.tensor(fill)}
    state.state |= {"d": torch.full((300_000,), fill, dtype=torch.bfloat16), "empty": torch.zeros(0, 3)}
    return {"numbers": state, "own": own}


def load_numbers(rank: int, size: int, folder: str) -> tuple[bool, list[float]]:
    answers = []
    # Ranks of few nodes read everything, those of many a share each that they broadcast: both ways, and twice.
    for LocalStorage.nodes_that_read_all in (8, 0, 8) if size > 1 else (8, 8):
        state = numbers(fill=0.0)
        checkpointer = Checkpointer(folder, state)
        restored = checkpointer.restore()
        assert restored is not None
        checkpointer.restore_rng()
        for key, value in numbers(fill=1.0)["numbers"].state.items():
            assert torch.equal(state["numbers"].state[key], value), key
        answers.append((restored.exact, torch.rand(3).tolist()))
    assert answers == answers[:1] * len(answers), "derived streams must not vary"
    return answers[0]


def test_restore_on_any_rank_count_is_exact_only_on_the_same_count(tmp_path: Path) -> None:
    for writers in (1, 3):
        folder = str(tmp_path / str(writers))
        on_ranks(writers, save_numbers, folder)
        for readers in (1, 3, 4):
            answers = on_ranks(readers, load_numbers, folder)
            assert {exact for exact, _ in answers} == {readers == writers}
            for rank, (_, draws) in enumerate(answers):
                if rank < writers:
                    torch.manual_seed(rank)
                    assert draws == torch.rand(3).tolist(), "a rank that was there continues its own stream"
            assert len({tuple(draws) for _, draws in answers}) == readers, "two ranks draw the same numbers"


class Broken(LocalStorage):
    """Fails with `number` once `room` more bytes were written."""

    def __init__(self, path: str, room: int, number: int):
        super().__init__(path)
        self.room, self.number = room, number

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        super().write(name, self._limited(chunks))

    def write_at(self, name: str, size: int, start: int, chunks: Iterable[memoryview]) -> None:
        super().write_at(name, size, start, self._limited(chunks))

    def _limited(self, chunks: Iterable[memoryview]) -> Iterable[memoryview]:
        for chunk in chunks:
            if len(chunk) > self.room:
                yield chunk[: self.room]
                raise OSError(self.number, "as the test wants it")
            self.room -= len(chunk)
            yield chunk


def refusals(rank: int, size: int, folder: str) -> list[list[str]]:
    """One failure after another, in one gang; returns the errors that this rank saw. The checkpoint stays the first."""
    logging.disable()
    seen = []

    def expect(kind: type[Exception], checkpointer: Checkpointer, step: int = 2) -> None:
        with pytest.raises(CheckpointError) as caught:
            checkpointer.save(step)
        assert type(caught.value) is kind, caught.value
        seen.append(str(caught.value))

    expect(StateError, Checkpointer(folder, {"x": stateful({"v": object() if rank == 2 else 1})}))
    expect(StateError, Checkpointer(folder, {"x": stateful({"a": 1, "v": [0, rank]})}))
    expect(StateError, Checkpointer(folder, {"x": stateful({"w": torch.zeros(3 if rank == 1 else 2)})}))
    expect(StateError, Checkpointer(folder, {"x": stateful({})}), step=rank)
    for room in (0, 3000, 20_000, 32_000):  # bytes of the slice, and some of the rank's own state
        disk = Broken(folder, room if rank == 1 else 1 << 30, errno.ENOSPC)
        expect(CheckpointError, Checkpointer(disk, numbers(fill=2.0)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:  # the kernel itself says no, in the middle of a file
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    expect(CheckpointError, Checkpointer(folder, numbers(fill=2.0)))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    disk = Broken(folder, 1 << 30, errno.EIO)
    disk.publish = lambda name, data: _raise(OSError(errno.EIO, "no manifest today"))  # type: ignore[method-assign]
    expect(CheckpointError, Checkpointer(disk, numbers(fill=2.0)))
    expect(ClaimLost, Checkpointer(folder, numbers(fill=2.0), may_commit=lambda: False))
    return seen  # type: ignore[return-value]


def _raise(error: Exception) -> None:
    raise error


def stateful(state: dict[str, Any]) -> Counter:
    counter = Counter()
    counter.state = state
    return counter


def test_save_error_of_one_rank_is_raised_on_all_ranks(tmp_path: Path) -> None:
    on_ranks(1, save_numbers, str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    answers = on_ranks(3, refusals, str(tmp_path))
    assert answers[0] == answers[1] == answers[2]
    seen = answers[0]
    assert "rank 2: x/v: a object cannot be saved" in seen[0]
    assert "rank 1: x/v/1" in seen[1]
    assert "rank 2: x/v/1" in seen[1]
    assert "rank 1: x/w" in seen[2]
    assert "rank 0: " not in seen[2]
    assert "rank 1: step" in seen[3]
    assert all("rank 1: " in message and "as the test wants it. Free some space" in message for message in seen[4:8])
    assert re.search(r"rank 1: .*-n0000.safetensors: File too large\.", seen[8])
    assert "no manifest today" in seen[9]
    assert "another attempt owns" in seen[10]
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before, "a failed save leaves nothing and touches nothing"
    assert not (tmp_path / "step_00000002").exists()
    assert [info.step for info in list_checkpoints(tmp_path)] == [7]


def save_without_gloo(rank: int, size: int, folder: str) -> list[int]:
    asked = []
    dist.get_backend_config = lambda group=None: asked.append(group) or "cuda:nccl"
    made = []
    new_group = dist.new_group
    dist.new_group = lambda *args, **options: made.append(new_group(*args, **options)) or made[-1]
    Checkpointer(folder, numbers(fill=1.0)).save(7)
    assert len(asked) == 1
    return [dist.get_world_size(group) for group in made]


def test_checkpointer_makes_its_own_gloo_group_beside_nccl(tmp_path: Path) -> None:
    assert on_ranks(2, save_without_gloo, str(tmp_path)) == [[2]] * 2
    assert [info.step for info in list_checkpoints(tmp_path)] == [7]


def save_batch_norm(rank: int, size: int, folder: str) -> tuple[list[float], list[float]]:
    logging.disable()
    model = torch.nn.BatchNorm1d(3000)
    model.running_mean.fill_(rank)  # type: ignore[union-attr, operator]
    before = model.running_mean.clone()  # type: ignore[union-attr, operator]
    own = Counter(per_rank=True)
    own.state = {"draws": [rank] * 3, "t": torch.full((5,), rank)}
    checkpointer = Checkpointer(folder, {"model": model, "own": own})
    checkpointer.save(1)
    assert torch.equal(before, model.running_mean), "the live buffers are not touched"  # type: ignore[arg-type]
    own.state = {}
    checkpointer.restore()
    return model.running_mean.unique().tolist(), own.state["draws"] + own.state["t"].tolist()  # type: ignore[union-attr, operator]


def load_batch_norm(rank: int, size: int, folder: str) -> list[float]:
    logging.disable()
    model = torch.nn.BatchNorm1d(3000)
    restored = Checkpointer(folder, {"model": model, "own": Counter(per_rank=True)}).restore()
    assert restored is not None
    assert not restored.exact
    return model.running_mean.unique().tolist()  # type: ignore[union-attr, operator]


def test_buffers_are_restored_per_rank_but_from_rank_0_on_fewer_ranks(
    tmp_path: Path,
) -> None:
    answers = on_ranks(4, save_batch_norm, str(tmp_path))
    assert answers == [([rank], [rank] * 8) for rank in range(4)]
    assert on_ranks(2, load_batch_norm, str(tmp_path)) == [[0.0]] * 2


class Gan(torch.nn.Module):
    """Spectral norm draws its vectors anew on each rank, and every weight follows from them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 8))
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.layer(x))
        return out


def train_gan(rank: int, size: int, folder: str, first: int, last: int) -> str:
    logging.disable()
    torch.manual_seed(7 + rank + 10 * first)
    model = torch.nn.parallel.DistributedDataParallel(Gan(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpointer = Checkpointer(folder, {"model": model, "optimizer": optimizer})
    restored = checkpointer.restore()
    assert (restored.step if restored else 0) == first
    assert restored is None or restored.exact
    for step in range(first, last):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        checkpointer.save(step + 1)
    return digest([model.module.state_dict(), optimizer.state_dict()])


def test_model_with_different_buffers_per_rank_resumes_bit_for_bit(tmp_path: Path) -> None:
    expected = on_ranks(2, train_gan, str(tmp_path / "whole"), 0, 4)
    on_ranks(2, train_gan, str(tmp_path / "parts"), 0, 2)
    assert on_ranks(2, train_gan, str(tmp_path / "parts"), 2, 4) == expected
    assert expected[0] != expected[1], "ranks that have the same buffers prove nothing"
