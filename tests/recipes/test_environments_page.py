"""Blocks of docs/environments.md and docs/failures.md do as written, with stand-ins for the tools of a site."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clusterdp import config
from clusterdp.fakeslurm import FakeCluster
from clusterdp.submission.plan import make_plan
from tests.docs.pages import ROOT, blocks
from tests.waiting import wait_for

BLOCKS = [each.text for name in ("environments", "failures") for each in blocks(ROOT / f"docs/{name}.md", "yaml")]


def block(word: str) -> str:
    """The one that has this word."""
    [found] = [text for text in BLOCKS if word in text]
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(quick=True, nodes=2) as cluster:
        yield cluster


class Site:
    """A home folder, tools on PATH, and what a job printed there."""

    def __init__(self, folder: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch):
        self.home, self.bin, self.work, self.cluster = folder / "home", folder / "bin", folder / "work", cluster
        for each in (self.home, self.bin, self.work):
            each.mkdir()
        for name, value in cluster.environ().items():
            if name in ("SLURM_CONF", "PATH"):
                monkeypatch.setenv(name, f"{self.bin}:{value}" if name == "PATH" else value)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.delenv("CLUSTERDP_SITE", raising=False)
        monkeypatch.chdir(self.work)

    def tool(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def runs(self, text: str, command: str) -> str:
        """What rank 0 of a job with this block of the page printed."""
        (self.work / "job.yaml").write_text(yaml.safe_dump({"script": command, **yaml.safe_load(text)}))
        job, _ = make_plan(config.load(self.work / "job.yaml")).carry_out()
        self.cluster.wait(job.id)
        outputs = [*job.run.path.glob("attempts/*/logs/node-00000.log"), *job.run.path.glob("slurm-*.out")]
        return "".join(path.read_text() for path in outputs)


@pytest.fixture
def site(tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, cluster, monkeypatch)


def test_virtual_environment_is_activated_before_the_program_starts(site: Site) -> None:
    site.tool(site.home / "envs/torch/bin/activate", f'PATH={site.home}/envs/torch/bin:"$PATH"\n')
    site.tool(site.home / "envs/torch/bin/python", f'#!/bin/sh\necho its own\nexec {sys.executable} "$@"\n')
    assert "its own" in site.runs(block("source ~/envs"), "python -c 'print(1)'")


def test_conda_environment_is_activated_in_the_job(site: Site) -> None:
    conda = 'conda() { [ "$1" = activate ] && export CONDA_DEFAULT_ENV=$2; }\n'
    site.tool(site.home / "miniconda3/etc/profile.d/conda.sh", conda)
    assert "in torch" in site.runs(block("conda activate"), "echo in $CONDA_DEFAULT_ENV")


def test_modules_are_loaded_in_the_configured_order(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # As the module command travels: a function in the environment.
    monkeypatch.setenv("BASH_FUNC_module%%", '() { [ "$1" = load ] && export LOADED="$LOADED $2"; }')
    assert "loaded gcc/12 cuda/12.4" in site.runs(block("gcc/12"), "echo loaded $LOADED")


def test_missing_module_prevents_the_program_start(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASH_FUNC_module%%", '() { echo "no such module: $2" >&2; return 1; }')
    said = site.runs(block("gcc/12"), "echo the program runs")
    assert "no such module: gcc/12" in said
    assert "the program runs" not in said


def test_apptainer_gets_mounts_working_folder_and_image(site: Site) -> None:
    standin = '#!/bin/sh\necho "apptainer: $*"\nwhile [ "$1" != /images/torch.sif ]; do shift; done\nshift\nexec "$@"\n'
    site.tool(site.bin / "apptainer", standin)
    said = site.runs(block("torch.sif"), "echo inside")
    assert "inside" in said
    assert re.search(r"apptainer: exec --bind (\S+):\1 --bind /data:/data:ro --pwd \S+/code /images/torch.sif", said)


def test_configured_gloo_interface_reaches_the_program(site: Site) -> None:
    assert "over ib0" in site.runs(block("GLOO_SOCKET_IFNAME: ib0"), "echo over $GLOO_SOCKET_IFNAME")


def test_hung_program_prints_its_stack_on_sigabrt(site: Site) -> None:
    (site.work / "hang.py").write_text(
        "import pathlib\nimport threading\n\n\ndef stands_here():\n"
        f"    pathlib.Path({str(site.work / 'hangs')!r}).touch()\n    threading.Event().wait()\n\n\nstands_here()\n"
    )
    text = {
        "command": [sys.executable, "hang.py"],
        "restart": {"max_crashes": 0},
        **yaml.safe_load(block("FAULTHANDLER")),
    }
    (site.work / "job.yaml").write_text(yaml.safe_dump(text))
    job, _ = make_plan(config.load(site.work / "job.yaml")).carry_out()
    wait_for("the program", (site.work / "hangs").exists, 60)
    site.cluster.run("scancel", "--signal=ABRT", f"{job.id}.0")
    site.cluster.wait(job.id)
    log = "".join(path.read_text() for path in job.run.path.glob("attempts/*/logs/node-00000.log"))
    assert "Fatal Python error: Aborted" in log
    assert "in stands_here" in log
