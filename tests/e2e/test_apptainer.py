"""Jobs in real containers: Apptainer of Debian's unstable, unprivileged, and an image that debootstrap makes.

Nothing is installed: both lie in a cache. `apptainer` is a program that shows the packages in an overlay over /usr, in
a mount namespace of its own, and becomes Apptainer.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.slurm import packages, release
from tests.slurm.testbed import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ENGINE = """\
#!{python} -IS
import os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.slurm import release
release.show(Path({folder!r}), "apptainer", "apptainer")
release.run("mount", "-t", "overlay", "apptainer", "-o", "ro,lowerdir={folder}/apptainer/etc:/etc", "/etc")
os.environ["APPTAINER_USERNS"] = "1" # as for who is not root
os.execv("/usr/bin/apptainer", ["apptainer", *sys.argv[1:]])
"""
NAMES = ("PATH", "LD_LIBRARY_PATH", "A")
TRAIN = f"""\
import json, os, time
import torch
import torch.distributed as dist

def main(job, delay_s=0.0):
    told = {{name: os.environ.get(name) for name in {NAMES}}}
    told |= {{"ranks": job.world_size, "image": open("/etc/image").read()}}
    with open(f"{{os.environ['CLUSTERDP_RUN_DIR']}}/told-{{job.rank}}", "w") as file:
        json.dump(told, file)
    model = job.wrap(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = job.loader(torch.utils.data.TensorDataset(torch.ones(240, 1)), 1)
    loop = job.loop(loader, {{"model": model, "optimizer": optimizer}}, epochs=1)
    for (x,) in loop:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        ones = torch.ones(1)
        dist.all_reduce(ones)
        loop.log(ranks=float(ones))
        time.sleep(delay_s)
"""
ENV = {"PATH": "/opt/mine:/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/$HOME/lib", "A": "it's $(id) \\x\n2"}
SEEN = ENV | {"LD_LIBRARY_PATH": ENV["LD_LIBRARY_PATH"] + ":/.singularity.d/libs"}  # of the engine: those of --nv


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH, with `apptainer`."""
    if reason := packages.why_not():
        pytest.skip(reason)
    if subprocess.run(["unshare", "--mount", "--user", "--map-root-user", "true"], capture_output=True).returncode:
        pytest.skip("Apptainer needs namespaces of mounts and users, which this machine forbids")
    wanted = ("apptainer", "debootstrap")
    try:
        folder = release.fetch_packages("apptainer", "sid", wanted, wanted)
    except (release.NoRelease, OSError) as error:
        pytest.skip(f"no Apptainer here: {error}")
    # In the container's namespace, the path of Apptainer begins in the overlay, and so its prefix is /lib.
    with suppress(FileExistsError):
        (folder / "apptainer/usr/lib/var").symlink_to(folder / "apptainer/var")
    path = tmp_path_factory.mktemp("engine") / "apptainer"
    path.write_text(ENGINE.format(python=sys.executable, root=str(ROOT), folder=str(folder)))
    path.chmod(0o755)
    return path.parent


@pytest.fixture(scope="session")
def image(engine: Path) -> Path:
    """Debian's smallest, of this machine's release, so that the virtual environment works in it."""
    tool = release.CACHE / "clusterdp/apptainer/apptainer/usr"
    folder = release.CACHE / f"clusterdp/image-{release.codename()}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "etc/image").exists():
            shutil.rmtree(folder, ignore_errors=True)
            words = ["--variant=minbase", "--include=python3", release.codename(), str(folder), release.mirror()]
            environ = os.environ | {"DEBOOTSTRAP_DIR": f"{tool}/share/debootstrap", "PATH": packages.PATH}
            try:
                release.run("unshare", "--mount", "sh", f"{tool}/sbin/debootstrap", *words, env=environ)
            except release.NoRelease as error:
                pytest.skip(f"no image for Apptainer here: {error}")
            (folder / "etc/image").write_text("it")
    return folder


@pytest.fixture
def start(fake_cluster: Cluster, engine: Path, image: Path, project: Path) -> Iterator[Callable[..., Run]]:
    """Submits the training of 2 x 2 ranks, with variables of its user."""
    started: list[Run] = []
    cluster = replace(
        fake_cluster, variables={**fake_cluster.variables, "PATH": f"{engine}:{fake_cluster.variables['PATH']}"}
    )
    own = dict.fromkeys(path for path in (sys.prefix, sys.base_prefix, str(ROOT)) if path != "/usr")
    config = {
        "entry": "train:main",
        "snapshot": {"enabled": False},
        "resources": {"partition": "low", "nodes": 2, "tasks_per_node": 2, "time": 20},
        "launch": {
            "env": ENV,
            "container": {"runtime": "apptainer", "image": str(image), "mounts": [f"{path}:{path}:ro" for path in own]},
        },
    }
    (project / "train.py").write_text(TRAIN)
    (project / "job.yaml").write_text(json.dumps(config))

    def start(*overrides: str, **variables: str) -> Run:
        of_user = replace(cluster, variables={**cluster.variables, **variables})
        started.append(submit(of_user, project, "job.yaml", f"run_dir={project}/run", *overrides))
        return started[-1]

    yield start
    for run in started:
        cluster.run("scancel", run.job)


@pytest.mark.parametrize("name", ["", "APPTAINER_CLEANENV", "APPTAINER_CONTAINALL"])
def test_preempted_ranks_in_apptainer_resume_in_one_run(start: Callable[..., Run], name: str) -> None:
    run = start("params.delay_s=0.1", **({name: "1"} if name else {}))
    run.wait_step(10)
    run.cluster.preempt(run.job)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["preempted", "done"], run.account()
    (stopped,), (restored,) = run.events("stopped"), run.events("restored")
    assert 60 > restored["step"] == stopped["step"] >= 10, run.account()
    assert {line["ranks"] for line in run.metrics() if "ranks" in line} == {4}, run.account()
    assert run.step() == 60, run.account()
    told = [json.loads(path.read_text()) for path in run.files.path.glob("told-*")]
    assert told == [{**SEEN, "ranks": 4, "image": "it"}] * 4, run.account()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("launch.container.image=/none/torch.sif", "FATAL: .*could not open image /none/torch.sif"),
        ("launch.python=/opt/none/bin/python", "FATAL: .*/opt/none/bin/python: no such file or directory"),
    ],
)
def test_repeated_fatal_line_of_apptainer_ends_the_run(start: Callable[..., Run], override: str, said: str) -> None:
    run = start(override)
    assert run.wait_end() == "FAILED", run.account()
    assert run.causes() == ["start", "start"], run.account()
    for verb in ("status", "why"):
        done = clusterdp(run.cluster, run.files.path, verb, str(run.files.path))
        assert re.search(f"the same error as before: {said}", done.stdout), done.stdout
        assert "the container's engine could not start the program" in done.stdout
