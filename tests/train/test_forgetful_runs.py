"""The forgetful programs of test_census.py on two ranks, preempted and killed: each is told before what it forgets, and
ends as an undisturbed one only if its state does not depend on that."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

from clusterdp.rundir import read_events
from clusterdp.train import JobHandle
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest
from tests.train import programs
from tests.train import test_census as forgetful
from tests.train.ranks import Ranks, running, wait_until
from tests.train.runs import Run

EPOCH, EVERY = 8, 4  # steps
FAULTS = [("TERM", 7, 9), ("KILL", 13, 12)]  # how, in which step, the step that the run goes on from
NEEDED = {  # the state depends on what they forget
    forgetful.buffer_of_a_loss,
    forgetful.attributes_of_a_module,
    forgetful.parameter_of_an_optimizer,
    forgetful.scaler_left_out,
    forgetful.generator_in_a_closure,
    forgetful.array_of_an_object,
    forgetful.counter_of_a_closure,
    forgetful.counters_of_a_helper,
    forgetful.hidden_state,
}


def train(job: JobHandle, record: str, program: str, fault: list[Any] | None) -> None:
    """fault: (TERM or KILL, the step after which it comes to rank 1)."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(0)
    random.seed(0)
    samples = EPOCH * 2 * job.world_size
    loader = job.loader(TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1)), 2)
    loops, state = list[Any](), dict[str, Any]()

    def average_gradients(optimizer: Any, *_: Any) -> None:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)

    def come(*_: Any) -> None:
        if fault and loops and [loops[0].step, job.rank] == [fault[1], 1]:
            os.kill(os.getpid(), getattr(signal, f"SIG{fault.pop(0)}"))
            fault.clear()

    def run(given: dict[str, Any]) -> Any:
        state.update(given)
        loops.append(job.loop(loader, given, epochs=3, every_steps=EVERY))
        return loops[0]

    register_optimizer_step_pre_hook(average_gradients)
    register_optimizer_step_post_hook(come)
    getattr(forgetful, program)(run)
    end = digest([each.state_dict() if hasattr(each, "state_dict") else each for each in state.values()])
    Path(record, f"end-{job.rank}").write_text(str(end))


def attempt(run: Run, name: str, fault: Any = None) -> Ranks:
    config = json.loads(run.dir.config.read_text())
    config["params"]["fault"] = fault
    run.dir.config.write_text(json.dumps(config))
    with running(run.path / name, programs.run_worker, str(run.path), size=2, env=run.attempt(name)) as ranks:
        codes = lambda: [process.exitcode for process in ranks.processes]  # noqa: E731
        wait_until(lambda: None not in codes() or any(codes()), "the end of the attempt")
    return ranks


def made(folder: Path, program: str) -> Run:
    entry, params = "tests.train.test_forgetful_runs:train", {"record": str(folder), "program": program}
    folder.mkdir()
    return Run(folder / "run", entry, params, checkpoint={"async_save": False}, train={"backend": "gloo"})


def ends(folder: Path) -> list[str]:
    return [(folder / f"end-{rank}").read_text() for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("program", forgetful.FORGETFUL, ids=lambda program: program.__name__)
def test_interrupted_forgetful_run_names_its_omission_before_it_differs(program: Any, tmp_path: Path) -> None:
    whole = attempt(made(tmp_path / "whole", program.__name__), "1.0")
    assert whole.join() == [0, 0], whole.log
    for how, step, goes_on in FAULTS:
        run = made(tmp_path / how, program.__name__)
        first = attempt(run, "1.0", [how, step])
        told = [event["name"] for event in read_events(run.dir) if event["event"] == "forgotten"]
        assert sorted(told) == sorted(forgetful.FORGETFUL[program]), first.log
        second = attempt(run, "1.1")
        assert second.join() == [0, 0], second.log
        assert run.event("restored")["step"] == goes_on, first.log
        assert (ends(tmp_path / how) == ends(tmp_path / "whole")) == (program not in NEEDED)
