"""GraphWatch: memory that grows with every step is told in the first steps, not when it is full."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from clusterdp.train.loop.graph_watch import CUDA_GRAPHS, PAUSE, ROUND, GraphWatch, detached
from tests.cuda_double import OnGpu

weight = torch.ones(3, requires_grad=True)


def losses(steps: int, keep: Callable[[torch.Tensor], None], watch: GraphWatch) -> None:
    for _ in range(steps):
        loss = (weight * 2).sum()
        watch.look("loss", loss)
        loss.backward()
        keep(loss)


def test_graph_watch_reports_losses_kept_in_a_list_once(capfd: pytest.CaptureFixture[str]) -> None:
    kept: list[torch.Tensor] = []
    watch = GraphWatch()
    losses(ROUND, kept.append, watch)
    assert watch.kept == "loss"
    assert "loss: the graphs of 8 of the last 8 steps are still in memory" in capfd.readouterr().err
    losses(PAUSE + ROUND, kept.append, watch)
    assert capfd.readouterr().err == ""  # it is said once


def test_graph_watch_reports_a_running_total_of_losses() -> None:
    """The losses themselves are gone; their graphs hang on the total."""
    total = torch.zeros(())

    def add(loss: torch.Tensor) -> None:
        nonlocal total
        total = total + loss

    watch = GraphWatch()
    losses(ROUND, add, watch)
    assert watch.kept == "loss"


def test_graph_watch_detects_losses_kept_only_later_in_training() -> None:
    kept: list[torch.Tensor] = []
    watch = GraphWatch()
    losses(ROUND, lambda loss: None, watch)
    losses(PAUSE + ROUND, kept.append, watch)
    assert watch.kept == "loss"


def test_graph_watch_ignores_detached_losses_and_plain_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    kept: list[torch.Tensor] = []
    watch = GraphWatch()
    losses(ROUND, lambda loss: kept.append(loss.detach()), watch)
    assert watch.kept is None
    for _ in range(3 * ROUND):
        watch.look("accuracy", torch.tensor(1.0))
        watch.look("lr", 0.1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("requires_grad", [False, True])
def test_logged_value_of_a_compiled_model_is_a_copy(monkeypatch: pytest.MonkeyPatch, requires_grad: bool) -> None:
    """A CUDA graph writes the next step's value into the same memory. Not proved: that of a real graph."""
    monkeypatch.setitem(sys.modules, CUDA_GRAPHS, SimpleNamespace())
    loss = OnGpu.of(torch.ones(1)).requires_grad_(requires_grad)
    kept = detached("loss", loss)
    with torch.no_grad():
        loss += 1
    assert (float(kept), kept.requires_grad) == (1.0, False)


def test_logged_value_is_not_copied_without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, CUDA_GRAPHS, raising=False)
    loss = OnGpu.of(torch.ones(1, requires_grad=True))
    assert detached("loss", loss).data_ptr() == loss.data_ptr()
    assert detached("loss", 3) == 3
