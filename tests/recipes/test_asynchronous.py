"""The asynchronous server: no gradient is lost, applied twice, or staler than agreed, and it still learns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.errors import ConfigError, StateError
from clusterdp.recipes import asynchronous
from clusterdp.recipes.asynchronous import Server
from clusterdp.recipes.parameter_server import check_updates
from clusterdp.recipes.staleness import StalenessBound
from clusterdp.recipes.wire import PULL, PUSH
from clusterdp.train import Group, JobHandle
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

ENTRY = "clusterdp.recipes.asynchronous:main"


class Workers:
    """In the place of the wire: each pulls, computes for a random while, pushes, and asks again at once."""

    def __init__(self, count: int, chance: random.Random):
        self.chance = chance
        self.asks = dict.fromkeys(range(1, count + 1), PULL)  # what each will say next, if it is not waiting
        self.pushed = dict.fromkeys(self.asks, 0)

    def wait(self) -> tuple[int, int]:
        assert self.asks, "all wait for the server, and it waits for them"
        worker = self.chance.choice(sorted(self.asks))
        if self.asks[worker] == PULL:
            return self.asks.pop(worker), worker  # now it waits for weights
        self.asks[worker] = PULL
        self.pushed[worker] += 1
        return PUSH, worker

    def give_weights(self, worker: int) -> None:
        assert worker not in self.asks, "it has not asked"
        self.asks[worker] = PUSH

    def take_gradients(self, worker: int) -> torch.Tensor:
        return torch.tensor(float(worker))

    def unpack_gradients(self, flat: torch.Tensor) -> float:
        return float(flat)


@pytest.fixture
def serving(group: Group) -> Any:
    def make(workers: int, most: int, seed: int = 0) -> tuple[Server, Workers]:
        wire = Workers(workers, random.Random(seed))
        return Server(torch.nn.Linear(1, 1), 0.1, StalenessBound(most), wire), wire  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(("workers", "most"), [(1, 0), (2, 1), (3, 2), (3, 4), (5, 4), (5, 20)])
def test_whoever_is_quick_no_gradient_is_lost_or_too_stale(serving: Any, workers: int, most: int) -> None:
    for seed in range(20):
        server, wire = serving(workers, most, seed)
        for _ in range(20):
            server.serve(workers)
        assert sum(server.staleness.values()) == server.updates == 20 * workers
        assert max(server.staleness) <= most
        assert sum(wire.pushed.values()) == server.updates + len(server.held)


def test_its_state_is_whole(serving: Any) -> None:
    server, _ = serving(3, 4)
    server.serve(30)
    other, _ = serving(3, 4)
    other.load_state_dict(server.state_dict())
    assert (other.updates, other.staleness) == (30, server.staleness)
    assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), server.model.parameters(), strict=True))
    check_updates(other.updates, 30)


def test_a_state_that_another_number_of_ranks_saved_is_not_begun_anew_in_silence(serving: Any) -> None:
    server, _ = serving(3, 4)
    with pytest.raises(StateError, match=r"made 0 updates, and should have made 30.*Resume with as many"):
        check_updates(server.updates, 30)


def test_it_needs_a_worker(job: JobHandle) -> None:
    with pytest.raises(ConfigError, match="Start two or more"):
        asynchronous.main(job)


def test_a_staleness_that_cannot_be_kept_is_refused(job: JobHandle) -> None:
    job.world_size = 4
    with pytest.raises(ConfigError, match=r"params\.max_staleness: 1 is too little for 3 workers.*Use 2 or more"):
        asynchronous.main(job, max_staleness=1)


def trained(tmp_path: Path, size: int, **params: Any) -> dict[str, Any]:
    run = Run(tmp_path / "run", ENTRY, params)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=size, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [0] * size, ranks.log
    return run.metrics[-1]


def test_over_real_ranks_with_the_least_staleness_every_gradient_arrives(tmp_path: Path) -> None:
    end = trained(tmp_path, 3, max_staleness=1, epochs=1, batch_size=32)
    assert end["updates"] == sum(end["staleness"].values()) == 2 * 22, "1,437 images by two workers, 32 at a time"
    assert set(end["staleness"]) <= {"0", "1"}


@pytest.mark.slow
def test_with_a_slow_worker_it_reaches_its_accuracy_and_keeps_its_staleness(tmp_path: Path) -> None:
    end = trained(tmp_path, 4, max_staleness=4, straggler_delay_s=0.01)
    assert end["test_accuracy"] >= 0.93
    assert max(map(int, end["staleness"])) in (3, 4), "with a slow one among them, some must be stale"
