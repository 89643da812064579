"""The processes of a run as /proc shows them: the same on the fake and on a real Slurm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from clusterdp import procfs
from clusterdp.batch.nodes import keeper, task
from clusterdp.fakeslurm import FakeCluster
from clusterdp.storage import MemoryStorage
from tests.e2e.cluster import Cluster
from tests.e2e.run import Run
from tests.waiting import wait_for

Variables = dict[str, str]


def processes_of(run: Run) -> dict[int, Variables]:
    """The environments, by process id, of all that an attempt's ranks have started, and of themselves."""
    mark = f"CLUSTERDP_RUN_DIR={run.files.path}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it is gone
            continue
        if mark in words:
            found[int(folder.name)] = dict(word.decode(errors="replace").partition("=")[::2] for word in words if word)
    return found


def ranks_of(run: Run) -> dict[int, int]:
    """The process ids of an entry's ranks, by rank."""
    return {rank: pid for rank, pid in _workers(run) if procfs.name(pid) != "reserve"}


def agents_of(run: Run) -> list[int]:
    """The process ids of the agents of its nodes."""
    return [pid for pid in processes_of(run) if "hang.node_watch" in " ".join(command_of(pid))]


def waiting_of(run: Run) -> dict[int, int]:
    """The process ids of the tasks that wait to become ranks, by rank, once they, or their fork server, have loaded
    torch."""
    tasks, servers = {}, []
    for pid, variables in processes_of(run).items():
        if task.RESERVE in variables:
            if procfs.name(pid) == "reserve":
                tasks[int(variables["SLURM_PROCID"])] = pid
            if procfs.name(pid) == "fork-server" or "RANK" in variables:
                servers.append(pid)
    are_loaded = all(len(procfs.threads(pid)) == 1 and "libtorch" in procfs.read(pid, "maps") for pid in servers)
    return tasks if servers and are_loaded else {}


def steps_of(run: Run, pids: Iterable[int]) -> set[str]:
    """The numbers of the srun steps of these processes."""
    found = processes_of(run)
    return {found[pid]["SLURM_STEP_ID"] for pid in pids if pid in found}


def _workers(run: Run) -> Iterator[tuple[int, int]]:
    for pid, variables in processes_of(run).items():
        words = command_of(pid)
        if "RANK" in variables and "clusterdp.train.worker" in words and "torchrun" not in words:
            yield int(variables["RANK"]), pid


def copies_of(run: Run) -> list[str]:
    """The manifests of copies of the state in the memory of the run's nodes."""
    nodes = {
        (found[keeper.KEY].partition(" ")[0], found["SLURMD_NODENAME"])
        for found in processes_of(run).values()
        if keeper.KEY in found
    }
    with suppress(OSError):  # it has not started yet
        names = [name for key, node in nodes for name in MemoryStorage(key, node).names()]
        return [name for name in names if "MANIFEST" in name]
    return []


def keepers_of(run: Run) -> list[int]:
    """The process ids of the run's keepers."""
    found = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if f"{run.files.path}/batch/nodes/keeper.py" in command_of(pid)[:3]]


def processes_on(run: Run, node: str) -> list[int]:
    """The process ids of a job's tasks and of its script on a node."""
    marks = {f"SLURM_JOB_ID={run.job}".encode(), f"SLURMD_NODENAME={node}".encode()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone
            if marks.issubset((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found


def command_of(pid: int) -> list[str]:
    """Its words; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def daemons(cluster: Cluster, *words: str) -> list[int]:
    """The processes of this cluster whose commands begin so. A slurmstepd goes by its title, which has the job's id in
    it: on 26.05 it lies over the environment."""
    mark, found = f"SLURM_CONF={cluster.variables['SLURM_CONF']}".encode(), []
    by_id = words[0].startswith("slurmstepd:")
    for folder in Path("/proc").glob("[0-9]*"):
        if command_of(int(folder.name))[: len(words)] == [*words]:
            with suppress(OSError):
                if by_id or mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def parent_of(pid: int) -> int:
    """OSError if it is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def without_slurmd(cluster: Cluster, node: str) -> Iterator[None]:
    """The slurmd of a node is dead, and Slurm does not know it. Back at the end."""
    if cluster.name == "fake":
        fake = FakeCluster.attach(Path(cluster.variables["SLURM_CONF"]).parent)
        fake.kill_slurmd(node)
        try:
            yield
        finally:
            fake.resume(node)
        return
    (slurmd,) = daemons(cluster, "slurmd", "-D", "-N", node)
    supervisor = parent_of(slurmd)  # which would start it again
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(slurmd, signal.SIGKILL)
    try:
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)
    state = ("sinfo", "-h", "-n", node, "-o", "%t")
    wait_for(f"{node} to be back", lambda: set(cluster.run(*state).split()) == {"idle"}, 60, every_s=0.5)


def nodes_of(run: Run) -> list[str]:
    names = run.cluster.run("squeue", "-h", "-j", run.job, "-o", "%N").strip()
    return run.cluster.run("scontrol", "show", "hostnames", names).split()


def skip_without_keepers(cluster: Cluster) -> None:
    if cluster.run("srun", "--version").split()[-1] < "22.05":
        pytest.skip("a step with --overlap shares CPUs only in this release")


def keepers_on(run: Run) -> set[str]:
    """The nodes on which keepers run."""
    return {node for node in nodes_of(run) for pid in processes_on(run, node) if "keeper.py" in str(command_of(pid))}


@contextmanager
def lost(run: Run, node: str) -> Iterator[None]:
    """A node without power: its daemons and processes are gone, and Slurm learns of it. Back at the end."""
    cluster = run.cluster
    if cluster.name == "fake":
        fake = FakeCluster.attach(Path(cluster.variables["SLURM_CONF"]).parent)
        fake.fail(node)
        yield
        fake.resume(node)
        return
    with without_slurmd(cluster, node):
        own = processes_on(run, node)
        has_script = any(str(run.files.path / "batch") in command_of(pid)[:6] for pid in own)
        # It would report the end of the script.
        first = daemons(cluster, f"slurmstepd: [{run.job}.batch]") if has_script else []
        parents = dict.fromkeys(parent_of(pid) for pid in own)
        stepds = [pid for pid in parents if command_of(pid)[0].startswith("slurmstepd")]
        for pid in [*first, *own, *stepds]:  # an srun that sees the end of a slurmstepd would end its step
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
        yield
        cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")  # refused if it is up already
