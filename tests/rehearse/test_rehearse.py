"""`clusterdp rehearse`, from the words to the verdicts, with a program that needs no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterdp import procfs
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the ranks are looked at in /proc"),
]

COUNTS = """\
import json, os, signal, sys, time

stop = False
def on_term(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, on_term)

state = {"step": 0, "sum": 0}
if os.path.exists("state.json"):
    state = json.load(open("state.json"))
rank = int(os.environ["RANK"])
while state["step"] < 60:
    time.sleep(0.03)
    state["step"] += 1
    state["sum"] = (state["sum"] * 31 + state["step"]) % 1000003
    print("step", state["step"], flush=True)
    if rank == 0 and (state["step"] % 10 == 0 or stop):
        with open("state.json.tmp", "w") as file:
            json.dump(state, file)
        os.replace("state.json.tmp", "state.json")
    if stop:
        sys.exit(0)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "count.py").write_text(COUNTS)
    (tmp_path / "count.yaml").write_text(f"command: [{sys.executable}, count.py]\nresources: {{nodes: 2}}\n")
    return tmp_path


def rehearse(project: Path, *words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "clusterdp", "rehearse", "count.yaml", "--json", *words]
    done = subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_program_without_clusterdp_passes_the_preempted_drill_bit_for_bit(project: Path) -> None:
    code, told = rehearse(project, "--only", "preempted", "run_dir=here")
    [drill] = told["drills"]
    assert (code, drill["verdict"], drill["state"]) == (0, "passed", "bit for bit"), told
    assert [row["cause"] for row in drill["attempts"]] == ["preempted", "done"]
    assert (told["steps"], told["state"], told["deterministic"]) == (60, "state.json", True)
    assert json.loads((project / "here/rehearsal.json").read_text()) == told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_program_without_clusterdp_passes_every_applicable_drill(project: Path) -> None:
    program = project / "count.py"
    program.write_text(program.read_text().replace("0.03", "0.1"))  # three time limits are to hit it
    code, told = rehearse(project, "--jobs", "2")
    verdicts = {drill["drill"]: drill["verdict"] for drill in told["drills"]}
    beyond = {"preempted-in-warmup", "preempted-in-evaluation", "rank-hung", "checkpoint-damaged"}
    beyond |= {"restarted-from-memory", "copy-damaged"}
    assert code == 0, told
    assert {name for name, verdict in verdicts.items() if verdict != "passed"} == beyond, told


@pytest.mark.slow
def test_program_restarting_from_step_0_is_reported_as_lost_work(project: Path) -> None:
    (project / "count.py").write_text(COUNTS.replace("state = json.load", "json.load"))
    code, told = rehearse(project, "--only", "preempted")
    [drill] = told["drills"]
    assert (code, drill["verdict"]) == (1, "lost work"), told
    assert drill["lost"] and drill["diagnosis"], told


FORGETS = """\
import torch

class Counter:
    number = 0

counter = Counter()

def main(job):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randn(64, 1))
    model = job.wrap(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loop = job.loop(job.loader(data, batch_size=2), {"model": model, "optimizer": optimizer}, epochs=6)
    for x, y in loop:
        counter.number += 1
        loss = ((model(x) - y) ** 2).mean() * (1 + 0.01 * counter.number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.log(loss=loss)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drill", "words"),
    [
        ("preempted", "not in the state of the loop, and begun anew at a resume: counter.number"),
        ("rank-killed", "with the same batch and random numbers: the step uses something that is not restored"),
    ],
)
def test_diagnosis_names_a_counter_outside_the_state(project: Path, drill: str, words: str) -> None:
    (project / "forgets.py").write_text(FORGETS)
    (project / "count.yaml").write_text("entry: forgets:main\nresources: {nodes: 2}\ncheckpoint: {every_steps: 20}\n")
    code, told = rehearse(project, "--only", drill)
    [row] = told["drills"]
    assert (code, row["verdict"]) == (1, "failed"), told
    assert words in row["diagnosis"]


def test_unknown_drill_gets_a_suggestion_and_list_prints_the_drills(project: Path) -> None:
    command = [sys.executable, "-m", "clusterdp", "rehearse", "count.yaml", "--only", "preemted"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "clusterdp: --only: 'preemted' is not a drill. Did you mean preempted?\n",
    )
    listed = subprocess.run([*command[:4], "--list"], cwd=project, capture_output=True, text=True)
    assert listed.stdout.startswith("preempted ") and "node-lost" in listed.stdout


@pytest.mark.slow
def test_job_failing_undisturbed_is_reported_before_any_drill(project: Path) -> None:
    (project / "count.py").write_text("raise ValueError('no data')\n")
    command = [sys.executable, "-m", "clusterdp", "rehearse", "count.yaml"]
    done = subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "undisturbed, the job ended as failed: ValueError: no data. `clusterdp why " in done.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(project: Path) -> None:
    command = [sys.executable, "-m", "clusterdp", "rehearse", "count.yaml", "run_dir=here"]
    environ = {**os.environ, "TMPDIR": str(project)}
    with subprocess.Popen(
        command, cwd=project, env=environ, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        run = project / "here/undisturbed"

        def below() -> list[int]:
            return procfs.descendants(process.pid)

        wait_for(
            "the ranks", lambda: any(procfs.environ(pid).get("CLUSTERDP_RUN_DIR") == str(run) for pid in below()), 60
        )
        there = below()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
    wait_for("the end of all", lambda: not any(procfs.is_alive(pid) for pid in there), 20)
