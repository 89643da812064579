"""The fake cluster as a distribution of its own: `pip install ./clusterdp/fakeslurm`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

import clusterdp

ROOT = Path(clusterdp.__file__).parent
FOLDER = ROOT / "fakeslurm"
PROJECT = (FOLDER / "pyproject.toml").read_text()
COPIES = {"slurm/hostlist.py": "hostlist", "slurm/state.py": "state", "procfs.py": "procfs"}


@pytest.mark.parametrize("original", COPIES)
def test_module_of_clusterdp_and_its_copy_are_equal(original: str) -> None:
    assert (FOLDER / f"core/{COPIES[original]}.py").read_text() == (ROOT / original).read_text()


def test_distribution_has_the_version_of_clusterdp_and_no_dependency() -> None:
    assert f'\nversion = "{clusterdp.__version__}" ' in PROJECT
    assert "\ndependencies = []\n" in PROJECT


def test_imports_are_relative_or_of_the_standard_library() -> None:
    """client/ runs with its own folders on the path; pytest loads the plugin."""
    known = {
        *sys.stdlib_module_names,
        "pytest",
        "yaml",
        "wire",
        *(path.stem for path in (FOLDER / "client").glob("*.py")),
    }
    for path in FOLDER.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        found = {each.module or "" for each in nodes if isinstance(each, ast.ImportFrom) and not each.level}
        found |= {alias.name for each in nodes if isinstance(each, ast.Import) for alias in each.names}
        assert {name.partition(".")[0] for name in found} <= known, path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this distribution and pytest."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), str(FOLDER)]
    subprocess.run([*pip, *build], check=True)
    of_old_python = ("exceptiongroup", "tomli", "typing_extensions") if sys.version_info < (3, 11) else ()
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments", *of_old_python):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return folder


def test_readme_example_passes_without_clusterdp(alone: Path, tmp_path: Path) -> None:
    readme = (FOLDER / "README.md").read_text()
    for name, text in re.findall(r"<!-- tested: (\S+) -->\n```\w+\n(.*?)```", readme, re.S):
        (tmp_path / name).write_text(text)
    loads = (
        "import sys\ndef test_alone():\n    assert not [name for name in sys.modules if name.startswith('clusterdp')]\n"
    )
    (tmp_path / "test_last.py").write_text(loads)
    command = [alone / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_verbs_of_fakeslurm_name_their_own_command(alone: Path, tmp_path: Path) -> None:
    def fakeslurm(*words: str) -> str:
        run = [alone / "bin/python", "-c", "import sys; from fakeslurm.cli import main; sys.exit(main())", *words]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert "Start one: `fakeslurm up`" in fakeslurm("status", "--dir", str(tmp_path / "none"))
    (tmp_path / "shape.yaml").write_text("nodes: [{name: n1}]\n")
    assert "pip install pyyaml" in fakeslurm("up", "--shape", "shape.yaml", "--dir", str(tmp_path / "one"))
    (tmp_path / "shape.json").write_text('{"nodes": [{"name": "n[1-2]", "cpus": 4}]}')
    assert "A fake cluster of 2 nodes" in fakeslurm("up", "--shape", "shape.json", "--dir", str(tmp_path / "one"))
    squeue = subprocess.run([tmp_path / "one/bin/squeue"], capture_output=True, text=True)
    assert squeue.stdout.split()[0] == "JOBID"
    assert fakeslurm("down", "--dir", str(tmp_path / "one")) == "The fake cluster is down.\n"
    squeue = subprocess.run([tmp_path / "one/bin/squeue"], capture_output=True, text=True)
    assert "`fakeslurm up`" in squeue.stderr


def test_both_distributions_work_beside_each_other(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "test_up.py").write_text(
        "import subprocess\n"
        "def test_up(fake_slurm):\n"
        "    assert 'n1' in subprocess.run(['sinfo', '-N'], capture_output=True, text=True).stdout\n"
    )
    site = next((alone / "lib").glob("python*/site-packages"))
    plugins = ["clusterdp.fakeslurm.pytest_plugin", "fakeslurm.pytest_plugin"]
    for order in (plugins, plugins[::-1]):
        loaded = [word for plugin in order for word in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *loaded]
        environ = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT.parent}:{site}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
