"""The fixture that ships with the package, and what docs/fake_cluster.md shows of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.cli import read_shape

PAGE = (Path(__file__).resolve().parents[2] / "docs/fake_cluster.md").read_text()
TESTED = re.findall(r"<!-- tested: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    for name, text in TESTED:
        (tmp_path / name).write_text(text)
    return tmp_path


def pytest_in(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    return subprocess.run(command, cwd=folder, env=environ | more, capture_output=True, text=True)


# Other people's plugins take a second to load.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p clusterdp.fakeslurm.pytest_plugin"}


def test_page_example_of_testing_a_script_passes(examples: Path) -> None:
    done = pytest_in(examples, **ALONE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_page_example_fails_for_a_script_restarting_from_the_beginning(examples: Path) -> None:
    script = examples / "count.sbatch"
    script.write_text(script.read_text().replace("cat at.", "cat nothing."))
    assert pytest_in(examples, **ALONE).returncode == 1


def test_page_cluster_shape_is_read_with_its_nodes_and_time_limits(examples: Path) -> None:
    shape = read_shape(str(examples / "cluster.yaml"))
    assert len(shape.nodes) == 20
    assert [part.max_minutes for part in shape.partitions] == [2880, None]


def test_pytest_plugin_imports_only_itself_if_its_fixture_is_unused(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert 'clusterdp.fakeslurm.pytest_plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.startswith('clusterdp')}\n"
        "    assert ours == {'clusterdp', 'clusterdp.fakeslurm', 'clusterdp.fakeslurm.pytest_plugin'}\n"
    )
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def fake_slurm_options() -> dict[str, object]:
    return {"nodes": 2}


def test_fake_slurm_fixture_puts_commands_on_path_and_takes_options(fake_slurm: FakeCluster) -> None:
    """Also for what the test calls without passing an environment."""
    said = subprocess.run(["sinfo", "-h", "-p", "main", "-o", "%N"], capture_output=True, text=True).stdout
    assert said == "n[1-2]\n"
    assert fake_slurm._shape.settings.requeue_delay_s == 1  # quick, though the options have only nodes
    assert fake_slurm.env["PATH"].startswith(f"{fake_slurm.bin}{os.pathsep}")
