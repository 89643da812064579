"""A day in the life of a run: it trains on a fake cluster, and about every minute something goes wrong."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from clusterdp.fakeslurm import FakeCluster, PartitionShape, Shape
from clusterdp.fakeslurm.core.job_ids import fresh_job_id
from clusterdp.operate.account.run_account import RunAccount
from tests.e2e.cluster import Cluster
from tests.e2e.faults import DISK, FAULTS, Fault, Scene
from tests.e2e.processes import processes_of
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

STEPS_OF_AN_EPOCH = 89  # 2 ranks with batches of 8
STEP_S = 0.27  # with the delay
TRAINED = 0.75  # of the day, with that many faults
BETWEEN_S = (30.0, 90.0)  # from one fault to the next
LAST_STEPS = 150  # in which nothing goes wrong any more: the run must not end in the middle of a fault
PROGRAM = ("configs/digits.yaml", "resources.tasks_per_node=1", "resources.partition=low", "resources.time=600")
RESTARTS = ("restart.max_crashes=10000", "restart.hung.limit=10000", "restart.node_lost.limit=10000")
HANGS = ("restart.hang_after_s=10", "restart.on_hang=restart")


@contextmanager
def own_cluster(folder: Path) -> Iterator[tuple[FakeCluster, Cluster]]:
    """Of four nodes, with a controller that looks every second. Temporary files of its jobs go to folder/tmp."""
    shape = Shape.simple(quick=True)
    partitions = (PartitionShape("main", default=True), PartitionShape("low", tier=1, preempt="REQUEUE", grace_s=10))
    settings = replace(shape.settings, first_job_id=fresh_job_id())
    (folder / "tmp").mkdir()
    with FakeCluster(shape=replace(shape, partitions=partitions, settings=settings)) as fake:
        environ = fake.environ()
        variables = {name: environ[name] for name in ("PATH", "SLURM_CONF")} | {"TMPDIR": str(folder / "tmp")}
        yield fake, Cluster("fake", variables, 60.0)


@dataclass
class Day:
    """A run in folder/run, with its checkpoints in `store`. seed: of what goes wrong, and when."""

    folder: Path
    store: Path
    minutes: float
    seed: int = 0
    done: list[tuple[Fault, str]] = field(default_factory=list)  # what was done, and to which attempt
    ports: set[int] = field(default_factory=set)  # on which the ranks have met

    @property
    def epochs(self) -> int:
        return max(3, round(self.minutes * 60 * TRAINED / STEP_S / STEPS_OF_AN_EPOCH))

    @property
    def steps(self) -> int:
        return self.epochs * STEPS_OF_AN_EPOCH

    def undisturbed(self, cluster: Cluster) -> Run:
        """The same training in one attempt, in folder/twin."""
        run = submit(cluster, self.folder, *PROGRAM, f"run_dir={self.folder}/twin", f"params.epochs={self.epochs}")
        assert run.wait_end(600 + 60 * self.minutes) == "COMPLETED", run.account()
        assert run.causes() == ["done"], run.account()
        return run

    def live(self, fake: FakeCluster, cluster: Cluster) -> Run:
        """From submit to the end of the run."""
        words = (f"run_dir={self.folder}/run", f"params.epochs={self.epochs}", "params.step_delay_s=0.25")
        words += (f"checkpoint.url={self.store}", "checkpoint.every_s=5", *RESTARTS, *HANGS)
        run = submit(cluster, self.folder, *PROGRAM, *words)
        scene = Scene(run, fake, self.store, random.Random(self.seed))
        try:
            scene.wait_for("the first attempt", lambda: bool(run.files.attempts()))
            next_at = time.monotonic()
            for fault in self._drawn(scene.dice):
                next_at += scene.dice.uniform(*BETWEEN_S)
                self._trains(scene)
                scene.wait_for("the next fault", partial(self._is_time, next_at, run), BETWEEN_S[1])
                if self._nearly_over(run):
                    break
                next_at = time.monotonic()
                self._happens(fault, scene)
            assert run.wait_end(600) == "COMPLETED", run.account()
        finally:
            cluster.run("scancel", run.job)
        return run

    def _drawn(self, dice: random.Random) -> Iterator[Fault]:
        """Each once, in any order, then each once again, and so on."""
        faults = [*FAULTS, *([DISK] if self.store.is_mount() else [])]
        while True:
            yield from dice.sample(faults, len(faults))

    def _is_time(self, at: float, run: Run) -> bool:
        return time.monotonic() > at or self._nearly_over(run)

    def _nearly_over(self, run: Run) -> bool:
        return run.step() > self.steps - LAST_STEPS

    def _trains(self, scene: Scene) -> None:
        """Until the newest attempt has made steps and saved: what is killed before that crashes at its start."""
        scene.wait_for("the training", lambda: scene.attempt.saved.exists() or self._nearly_over(scene.run), 120)
        self.ports |= {int(each["MASTER_PORT"]) for each in processes_of(scene.run).values() if "MASTER_PORT" in each}

    def _happens(self, fault: Fault, scene: Scene) -> None:
        attempt = scene.attempt
        trace = fault.do(scene)
        self.done.append((fault, attempt.name))
        step = scene.run.step()
        if fault.causes:
            scene.wait_for(f"the end by {fault.name}", lambda: scene.attempt.name != attempt.name, 120)
            self._trains(scene)
            cause = attempt.cause.read_text().strip()
            assert cause in fault.causes, f"{fault.name} is on record as {cause}\n{scene.run.account()}"
        else:
            scene.wait_for("another step", lambda: scene.run.step() > step)
            assert scene.attempt.name == attempt.name, f"{fault.name} ended the attempt\n{scene.run.account()}"
        assert trace(), f"nothing shows {fault.name}\n{scene.run.account()}"

    def report(self, run: Run, account: RunAccount) -> str:
        """For people: the account of the run, and what each fault has cost."""
        lost = {attempt.name: attempt.steps_lost for attempt in account.attempts}
        faults, steps = Counter[str](), Counter[str]()
        for fault, attempt in self.done:
            faults[fault.name] += 1
            steps[fault.name] += lost[attempt] if fault.causes else 0
        lines = [f"{count:6}  {steps[name]:10}  {name}" for name, count in sorted(faults.items())]
        told = clusterdp(run.cluster, self.folder, "goodput", str(run.files.path)).stdout
        return "\n".join([told, f"{len(self.done)} faults, of seed {self.seed}", "faults  lost steps", *lines])


def left_behind(run: Run, folder: Path, ports: set[int]) -> list[str]:
    """What the run has not taken with it: processes, ports, temporary files."""
    wait_for("the end of its processes", lambda: not processes_of(run), 10)
    found = [f"port {port} is still taken" for port in sorted(ports) if not _is_free(port)]
    found += [str(path) for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    return found + [str(path) for path in run.files.path.rglob(".*")]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
