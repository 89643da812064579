"""The scenarios of the records, played on the fake cluster: what a real Slurm did is what the fake must do."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster

HERE = Path(__file__).parent
KNOWN = HERE / "known-differences.txt"
BREAK = HERE / "break_node.py"
AT_ONCE = 4  # scenarios mostly wait
PATIENCE = ["--tolerance", "4"]  # seconds: the machine may be busy with other tests; KillWait is 5

QUICK = [
    "plain",
    "exits",
    "cancel",
    "cancel-pending",
    "errors",
    "het",
    "multi-prog",
    "requeue-array",
    "sbatch-output",
    "sbatch-ways",
    "srun-io",
]
SLOW = """
    array bad-exit cancel-obeyed cpus-per-task export gpus kill-srun layout node-down preempt preempt-grace0 requeue
    requeue-dependency requeue-words revive sbatch-env signal signal-preempt steps timelimit together
    array-more cancel-signal constraints directives option-values order sacct-formats salloc sbatch-more
    sinfo-formats squeue-formats time-forms dependency hold job-update node-drain node-fail scontrol-show srun-alone
    srun-signals
""".split()
SCENARIOS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def play(name: str, out: Path) -> str:
    """Record one scenario on a cluster of its own; returns what the recorder said."""
    with FakeCluster() as cluster:
        environ = {name: value for name, value in cluster.environ().items() if name != "SLURM_CONF"}
        environ["SLURM_CONF"] = str(cluster.folder / "slurm.conf")
        for verb in ("fail", "restore"):
            environ[f"{verb.upper()}_NODE"] = f"{sys.executable} {BREAK} {cluster.folder} {verb}"
        done = subprocess.run(
            [HERE / "run.sh", out, name], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recordings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """All scenarios that this run asks for, played side by side."""
    out = tmp_path_factory.mktemp("fake-records")
    (out / "records").mkdir()
    here = [item for item in request.session.items if item.path == Path(__file__)]
    names = [item.callspec.params["name"] for item in here if hasattr(item, "callspec")]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {"": out, **{name: pool.submit(play, name, out) for name in names}}  # type: ignore[dict-item]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_fake_does_what_the_real_slurm_did(name: str, recordings: dict[str, Future[str]]) -> None:
    said = recordings[name].result()
    command = [sys.executable, HERE / "diff.py", HERE / "records", recordings[""], name, "--known", KNOWN, *PATIENCE]
    difference = subprocess.run(command, capture_output=True, text=True)  # type: ignore[list-item]
    assert difference.returncode == 0, f"{said}\n{difference.stdout}{difference.stderr}"


def test_the_comparison_notices_a_difference(tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    (tmp_path / "records").mkdir()
    wrong = (HERE / "records" / "cancel.json").read_text().replace("CANCELLED CA None", "COMPLETED CD None")
    (tmp_path / "records" / "cancel.json").write_text(wrong)
    command = [sys.executable, HERE / "diff.py", HERE / "records", tmp_path, "cancel", "--known", KNOWN]
    assert subprocess.run(command, capture_output=True).returncode == 1
