"""Installed from a wheel, away from the checkout, it works the same."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the built wheel, and this environment's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*PIP, *build], check=True)
    venv.create(folder / "env", symlinks=True)
    site = next((folder / "env/lib").glob("python*/site-packages"))
    site.joinpath("others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    wheel = next(folder.glob("*.whl"))
    python = folder / "env/bin/python"
    install = ["install", "--no-deps", "--no-index", "--force-reinstall", "--target", str(site), str(wheel)]
    subprocess.run([*PIP, *install], check=True)
    assert python.exists()
    return folder / "env/bin"


def say(installed: Path, *words: str) -> str:
    command = [str(installed / "python"), "-m", "clusterdp", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=installed).stdout


def test_installed_wheel_contains_sbatch_templates_and_configs(installed: Path) -> None:
    where = subprocess.run(
        [installed / "python", "-c", "import clusterdp; print(clusterdp.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=installed,
    )
    assert str(installed.parent) in where.stdout
    assert say(installed, "submit", "configs/digits.yaml", "--dry-run").startswith(
        "#!/bin/bash\n#SBATCH --job-name=digits"
    )
    assert "digits" in say(installed, "configs")


def test_installed_wheel_submits_the_programs_beside_its_configs(installed: Path) -> None:
    assert "--job-name=gan" in say(installed, "submit", "gan", "--dry-run")
    assert "entry: clusterdp.configs.gan:main " in say(installed, "show", "configs/gan.yaml")
    assert say(installed, "submit", "sweep", "--dry-run").startswith("#!/bin/bash\n")
    assert "wrote  mine/gan.py\n" in say(installed, "configs", "gan", "--to", "mine")
    assert "entry: mine.gan:main " in say(installed, "show", "mine/gan.yaml")


def test_wheel_contains_py_typed(installed: Path) -> None:
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    assert (site / "clusterdp" / "py.typed").exists()


def test_wheel_contains_no_tests_and_no_findings(installed: Path) -> None:
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    assert not (site / "tests").exists()
    assert not (site / "findings").exists()
