"""The configs that are shipped, and their programs beside them: found from any folder, and each complete in itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.check.check import subject_of
from tests.test_maps import docstring

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAMS = sorted(CONFIGS.glob("*.py"))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_program_of_each_config_is_found_from_any_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = subject_of(config.read(path), path).spec.config.entry or ""
    folder, _, module = entry.partition(":")[0].rpartition(".")
    assert folder == ("configs" if path.with_name(f"{module}.py") in PROGRAMS else "clusterdp.recipes")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_beside_its_config_imports_no_other_and_is_documented(path: Path) -> None:
    """It is copied alone, and then has another name: `gan` or `x.gan`, and not `configs.gan`."""
    names = {other.stem for other in PROGRAMS} | {"configs"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not names & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert (node.module or "").split(".")[0] not in names
    assert docstring(path)


def test_job_runs_the_program_beside_its_config(tmp_path: Path, forking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("CLUSTERDP_", "SLURM_", "SBATCH_")):
            monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/hello.yaml").write_text(
        f"entry: hello:main\nrun_dir: run\nresources: {{time: 5}}\nlaunch: {{python: {forking}}}\n"
    )
    (tmp_path / "conf/hello.py").write_text("def main(job):\n    print('runs as', __name__)\n")
    command = [sys.executable, "-m", "clusterdp", "submit", "conf/hello.yaml", "--cluster", "local"]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = "".join(file.read_text() for file in (tmp_path / "run").glob("attempts/*/logs/*"))
    assert "runs as conf.hello\n" in logs
