"""A cluster behind ssh: `status --on` beside a bare `ssh HOST clusterdp status`, and a submit of 2,000 unchanged files,
on loopback and over a connection with a delay of 25 ms each way. Needs sshd (openssh-server)."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core.shape import Shape
from tests.benchmarks.table import keep, rounds_of, show, take_turns
from tests.remote.delay import DelayingProxy
from tests.remote.sshd import Sshd

FILES = 2000
DELAY_S = 0.025  # each way
BARE = "ssh cluster clusterdp status RUN"
ON = "clusterdp --on cluster status RUN"
SUBMIT = f"clusterdp --on cluster submit, {FILES} unchanged files"


def main() -> None:
    rounds = rounds_of(__doc__, 10)
    with suppress(OSError):
        os.makedirs("/run/sshd", exist_ok=True)
    for delay_s, where in ((0.0, "loopback"), (DELAY_S, f"{1000 * DELAY_S:.0f} ms each way")):
        with (
            tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name,
            cluster(Path(name), delay_s) as (sshd, proxy),
        ):
            measure(sshd, proxy, rounds, where)


@contextmanager
def cluster(folder: Path, delay_s: float) -> Iterator[tuple[Sshd, DelayingProxy]]:
    with FakeCluster(shape=Shape.simple(quick=True)) as slurm:
        environ = slurm.environ()
        sshd = Sshd(folder / "ssh", there={name: environ[name] for name in ("PATH", "SLURM_CONF")})
        sshd.profile(f"remote: {{python: {sys.executable}}}\n")
        sshd.start()
        proxy = DelayingProxy(sshd.port, delay_s)
        config = sshd.folder / "ssh_config"
        config.write_text(config.read_text().replace(f"Port {sshd.port}", f"Port {proxy.port}"))
        sshd.open_master()
        try:
            yield sshd, proxy
        finally:
            sshd.stop()
            proxy.close()


def measure(sshd: Sshd, proxy: DelayingProxy, rounds: int, where: str) -> None:
    project = sshd.here / "p"
    project.mkdir()
    (project / "c.yaml").write_text("command: 'true'\n")
    for number in range(FILES):
        (project / f"f{number}.py").write_text(f"x = {number}\n")
    done = sshd.on("submit", "c.yaml", "run_dir=runs/a", "--watch", cwd=project)
    assert done.returncode == 0, done.stderr
    run = sshd.home / "clusterdp/p/runs/a"
    clusterdp = Path(sys.executable).with_name("clusterdp")

    def timed(what: Callable[[], object]) -> Callable[[], float]:
        def one() -> float:
            began = time.perf_counter()
            what()
            return time.perf_counter() - began

        return one

    title = f"A cluster behind ssh, {where}"
    measures = {
        BARE: timed(lambda: sshd.ssh("cluster", f"{clusterdp} status {run}")),
        ON: timed(lambda: sshd.on("status", str(run), cwd=project)),
        "clusterdp status RUN, there": timed(lambda: sshd.clusterdp("status", str(run))),
    }
    show(title, take_turns(measures, rounds, {ON: BARE}))
    measures = {SUBMIT: timed(lambda: sshd.on("submit", "c.yaml", cwd=project))}
    show(title, take_turns(measures, min(rounds, 5), {}))
    for name, words in ((BARE, ()), (ON, ("status", str(run))), (SUBMIT, ("submit", "c.yaml"))):
        before = proxy.turns
        sshd.on(*words, cwd=project) if words else sshd.ssh("cluster", f"{clusterdp} status {run}")
        print(f"{name:60}{proxy.turns - before} turns on the wire")
        keep(f"{title}: {name}, turns", proxy.turns - before)


if __name__ == "__main__":
    main()
