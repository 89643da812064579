"""launch.environment: an archive that each node unpacks once a job."""

from __future__ import annotations

import os
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from clusterdp.batch.files.rank_logs import text_of
from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit

# Fails once: the second attempt, in place, must find the environment, and may read no archive.
PROGRAM = """
python -c 'import sys, clusterdp; print(sys.prefix)'
if [ ! -e $CLUSTERDP_RUN_DIR/tried ]; then
  sleep 1
  [ $RANK != 1 ] || { rm -f env.tar.gz; touch $CLUSTERDP_RUN_DIR/tried; exit 3; }
  sleep 30
fi
"""
CONFIG = """
command: [bash, program.sh]
snapshot: {enabled: false}
launch: {environment: env.tar.gz}
resources: {partition: main, nodes: 2, tasks_per_node: 1, time: 10}
"""


@pytest.fixture
def environment(project: Path, tmp_path: Path) -> Path:
    """A folder that becomes env.tar.gz: a virtual environment of the packages of this one."""
    folder = tmp_path / "env"
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "more.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path(__file__).parents[2]}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    (project / "program.sh").write_text(PROGRAM)
    (project / "train.yaml").write_text(CONFIG)
    return folder


def pack(folder: Path, project: Path) -> None:
    with tarfile.open(project / "env.tar.gz", "w:gz") as archive:
        archive.add(folder, arcname=".")


def start(cluster: Cluster, project: Path) -> Run:
    return submit(cluster, project, "train.yaml", f"run_dir={project}/run")


@pytest.mark.long
def test_environment_is_sent_once_unpacked_on_each_node_and_removed(
    cluster: Cluster, project: Path, environment: Path
) -> None:
    pack(environment, project)
    run = start(cluster, project)
    assert run.wait_end() == "COMPLETED", run.account()
    place = f"/tmp/clusterdp-{os.getuid()}-{run.job}"
    assert run.causes() == ["start", "done"]
    logs = [text_of(str(attempt.logs), rank) for attempt in run.files.attempts() for rank in (0, 1)]
    assert [log.splitlines()[0] for log in logs] == [place] * 4
    assert not Path(place).exists()


def test_environment_without_python_ends_the_run_with_its_reason(
    fake_cluster: Cluster, project: Path, environment: Path
) -> None:
    (environment / "bin/python").unlink()
    pack(environment, project)
    run = start(fake_cluster, project)
    assert run.wait_end() == "FAILED", run.account()
    why = clusterdp(fake_cluster, project, "why", "run").stdout
    assert "launch.environment: " in why and "It needs bin/python" in why
    assert not Path(f"/tmp/clusterdp-{os.getuid()}-{run.job}").exists()


def test_missing_archive_is_refused_before_the_submit(fake_cluster: Cluster, project: Path, environment: Path) -> None:
    refused = clusterdp(fake_cluster, project, "submit", "train.yaml", "--cluster", "slurm")
    assert refused.returncode == 2
    assert "launch.environment: " in refused.stderr and "is not a file that can be read" in refused.stderr
