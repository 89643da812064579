"""The scenarios of the records, played on the fake cluster as each recorded release of Slurm.

What a real Slurm of that release did is what the fake must do.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from clusterdp.fakeslurm import FakeCluster

HERE = Path(__file__).parent
BREAK = HERE / "break_node.py"
# Variables of these tests' own, which hide GPUs and would be in the environment of each job
NOT_RECORDED = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
PATIENCE = ["--tolerance", "4"]  # seconds: the machine may be busy with other tests; KillWait is 5

RELEASES = ("22.05", "24.11", "26.05")
QUICK_OF = {
    "22.05": ["cancel", "errors", "label-files", "no-kill-batch-host"],
    "24.11": [
        "plain",
        "exits",
        "cancel",
        "requeue-array",
        "sbatch-output",
        "sbatch-ways",
        "no-kill-second-step",
        "no-kill-range",
        "resize",
    ],
}


def cases() -> Iterator[ParameterSet]:
    for release in RELEASES:
        for name in sorted(path.stem for path in (HERE / "records" / release).glob("*.json")):
            marks = [] if name in QUICK_OF.get(release, ()) else [pytest.mark.slow]
            yield pytest.param((release, name), marks=marks, id=f"{release}-{name}")


def play(release: str, name: str, out: Path) -> str:
    """Record one scenario on a cluster of its own; returns what the recorder said."""
    with FakeCluster(slurm_version=release) as cluster:
        environ = {name: value for name, value in cluster.environ().items() if name not in NOT_RECORDED}
        environ["SLURM_CONF"] = str(cluster.folder / "slurm.conf")
        for verb in ("fail", "restore"):
            environ[f"{verb.upper()}_NODE"] = f"{sys.executable} {BREAK} {cluster.folder} {verb}"
        done = subprocess.run(
            [HERE / "run.sh", out / release, name],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    return done.stdout + done.stderr


def compare(release: str, name: str, got: Path) -> subprocess.CompletedProcess[str]:
    known = HERE / "known-differences" / f"{release}.txt"
    folders = [str(HERE / "records" / release), str(got)]
    command = [sys.executable, str(HERE / "diff.py"), *folders, name, "--known", str(known), *PATIENCE]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", list(cases()))
def test_fake_slurm_replays_recorded_scenarios_like_the_real_release(case: tuple[str, str], tmp_path: Path) -> None:
    recorder = play(*case, tmp_path)
    release, name = case
    difference = compare(release, name, tmp_path / release)
    assert difference.returncode == 0, f"{recorder}\n{difference.stdout}{difference.stderr}"


def test_record_comparison_detects_a_changed_job_state(tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    (tmp_path / "records").mkdir()
    right = (HERE / "records" / "24.11" / "cancel.json").read_text()
    (tmp_path / "records" / "cancel.json").write_text(right.replace("CANCELLED CA None", "COMPLETED CD None"))
    assert compare("24.11", "cancel", tmp_path).returncode == 1
    (tmp_path / "records" / "cancel.json").write_text(right)
    assert compare("24.11", "cancel", tmp_path).returncode == 0
