"""launcher: torchrun, with the agents of two nodes on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.submission.conftest import RunScript, Stubs
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
FIRST_PORT = 10_000  # of job 0, see parts/rendezvous.sh
pytestmark = pytest.mark.slow

TWO_NODES = {"launch": {"launcher": "torchrun"}, "resources": {"nodes": 2, "tasks_per_node": 2}}

# The step of two nodes: node 1 first, unless it has to wait for the gate; if one fails, the other is killed.
SRUN = f"""\
#!{sys.executable}
import os, subprocess, sys

gate, words = os.path.join(os.environ["STUBS"], "gate"), sys.argv[1:]
output = next(word.partition("=")[2] for word in words if word.startswith("--output="))
while words[0].startswith("-"):
    del words[0]

def start(node):
    environ = {{**os.environ, "SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_NTASKS": "2"}}
    with open(output.replace("%5t", f"{{node:05d}}"), "a") as log:
        return subprocess.Popen(words, env=environ, stdout=log, stderr=log)

if os.path.exists(gate):
    agents = [start(0)]
    open(os.path.join(os.environ["STUBS"], "port"), "w").write(os.environ["MASTER_PORT"])
    open(gate).read()
    agents.append(start(1))
else:
    agents = [start(1), start(0)]
worst = 0
while agents:
    ended, status = os.wait()
    worst = worst or os.waitstatus_to_exitcode(status) % 256
    agents = [agent for agent in agents if agent.pid != ended]
    for agent in agents if worst else ():
        os.kill(agent.pid, 9)
sys.exit(worst)
"""


@pytest.fixture
def logs(stubs: Stubs, tmp_path: Path) -> Path:
    (stubs.folder / "srun").write_text(SRUN)
    return tmp_path / "run" / "attempts" / "7.0" / "logs"


def test_torchrun_ranks_follow_slurms_node_order(run_script: RunScript, logs: Path) -> None:
    code = 'import os; print(os.environ["GROUP_RANK"], os.environ["SLURM_NODEID"], os.environ["RANK"])'
    done = run_script({**TWO_NODES, "command": [sys.executable, "-c", code]})
    assert done.returncode == 0, [log.read_text() for log in logs.iterdir()]
    said = [(logs / f"rank-{rank:05d}.out").read_text().split() for rank in range(4)]
    assert said == [["0", "0", "0"], ["0", "0", "1"], ["1", "1", "2"], ["1", "1", "3"]]


def test_torchrun_store_does_not_unpickle_bytes_of_a_foreign_process(
    run_script: RunScript, stubs: Stubs, logs: Path, tmp_path: Path
) -> None:
    """They stop the job, as every torch job's store lets them; they run nothing."""
    for name in ("gate", "port"):
        os.mkfifo(stubs.folder / name)
    marker = tmp_path / "executed"
    said = []

    def attack() -> None:
        port = (stubs.folder / "port").read_text().strip()
        words = [sys.executable, "-m", "tests.submission.stranger", port, str(marker)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as stranger:
            assert stranger.stdout
            said.append(stranger.stdout.readline())
            (stubs.folder / "gate").write_text("open\n")  # now the second agent comes, and both read

    with ThreadPoolExecutor(1) as pool:
        attacker = pool.submit(attack)
        run_script({**TWO_NODES, "command": "true", "restart": {"max_crashes": 0}})
        attacker.result(timeout=60)
    assert said == ["connected\n"]
    assert not marker.exists(), (logs / "node-00000.out").read_text()


def test_torchrun_agents_restart_with_the_next_port_if_theirs_is_taken(run_script: RunScript, logs: Path) -> None:
    with socket.socket() as taken:  # bound, not listening: the script's probe finds nobody
        for job in range(7, 107):
            try:
                taken.bind(("0.0.0.0", FIRST_PORT + job * 10))
                break
            except OSError:
                continue
        done = run_script({**TWO_NODES, "command": "true"}, job=job)
    said = (logs.parents[1] / f"{job}.0" / "logs" / "node-00000.out").read_text()
    assert done.returncode == 0, said
    assert "EADDRINUSE" in said
    assert f"the port was taken; once more with {FIRST_PORT + job * 10 + 1}." in done.stderr


def test_torch_elastic_shutdown_timeout_limits_the_torchrun_agents_wait_for_its_ranks(tmp_path: Path) -> None:
    """By itself it kills them after 30 s, in the middle of a longer grace time. To see it obey, it is told 1 s here."""
    deaf = f"trap '' TERM; touch {tmp_path}/up; for _ in {{1..60}}; do sleep 1; done"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    environ = {**os.environ, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}
    agent = subprocess.Popen([*words, "--no-python", "bash", "-c", deaf], env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_for("the rank", (tmp_path / "up").exists, 60)
        agent.terminate()
        agent.wait(20)
    finally:
        agent.kill()
