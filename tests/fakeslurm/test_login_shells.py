"""Scripts of login shells find the cluster's commands, whatever /etc/profile does to PATH."""

import os
import subprocess
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import login_shells
from clusterdp.fakeslurm.core.paths import Paths
from tests.fakeslurm.conftest import Desk


@pytest.mark.parametrize("first", ["#!/bin/bash --login", "#!/bin/sh\n. /etc/profile"])
def test_script_of_a_login_shell_finds_srun_and_scontrol(shared_desk: Desk, tmp_path: Path, first: str) -> None:
    (tmp_path / "login.sh").write_text(f"{first}\nsrun bash -lc 'scontrol show hostnames'\n")
    done = shared_desk.run("sbatch", "--wait", "--ntasks=2", "--output=out", "login.sh", HOME=str(tmp_path))
    assert (done.returncode, (tmp_path / "out").read_text()) == (0, "n1\nn1\n")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A cluster on a system whose /etc/profile sets PATH anew, as Debian's does."""
    monkeypatch.setattr(login_shells, "PROFILE", tmp_path / "debians")
    (tmp_path / "debians").write_text("PATH=/usr/bin:/bin; export PATH")
    paths = Paths(tmp_path / "a cluster")
    paths.make()
    paths.hosts.touch()
    return paths


def test_etc_profile_of_a_job_puts_the_clusters_commands_first_in_path(bare: Paths) -> None:
    login_shells.write(bare)
    assert not login_shells.variables(bare)
    assert path_after(f". '{bare.profile}'; . '{bare.profile}'") == f"{bare.bin}:/usr/bin:/bin"


def test_login_shell_puts_cluster_commands_first_in_path_without_a_mounted_profile(bare: Paths, tmp_path: Path) -> None:
    login_shells.write(bare)
    bare.profile.unlink()  # as mounting does where it cannot be done
    variables = login_shells.variables(bare)
    (tmp_path / ".bash_profile").write_text("PATH=/usr/bin:/bin")
    assert path_after(login=True, HOME=str(tmp_path), **variables) == f"{bare.bin}:/usr/bin:/bin"
    assert path_after(**variables) == os.defpath


def path_after(script: str = "true", login: bool = False, **environ: str) -> str:
    words = ["/bin/bash", *(["-l"] if login else []), "-c", f'{script}; echo "$PATH"']
    return subprocess.run(words, env={"PATH": os.defpath, **environ}, capture_output=True, text=True).stdout.strip()


def test_etc_profile_is_not_replaced_for_non_root_with_resolvable_node_names(
    bare: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    bare.hosts.unlink()
    login_shells.write(bare)
    assert login_shells.variables(bare) == {"BASH_ENV": str(bare.bash_env)}


def test_fake_cluster_leaves_etc_profile_of_the_machine_unchanged(shared_cluster: FakeCluster) -> None:
    shared_cluster.run("sinfo")
    assert "fake cluster" not in login_shells.PROFILE.read_text()
