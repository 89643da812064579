"""Drills on copies of the state in the memory of the nodes: ranks restart from a copy, or the copy is damaged."""

from __future__ import annotations

from clusterdp.batch.nodes import keeper
from clusterdp.checkpoint.format.manifest import CheckpointInfo, list_checkpoints, scan
from clusterdp.rehearse.drills.losses import CRASHES
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.drills.strikes import frozen
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.run_spec import DISK, MEMORY, Missed, NotPossibleHere
from clusterdp.storage import MemoryStorage

TRIES = 20  # times that the ranks are stopped, until a copy is newer than all checkpoints


def restarted_from_memory(scene: Scene) -> None:
    """Kills all ranks. The next attempt must resume from the copy."""
    _must_have_copies(scene)
    pids, copy, _ = _newest_copy(scene)
    attempt = scene.newest()
    scene.kill(pids)
    evidence = f"step {copy.step} was in the memory of the nodes, and all ranks got SIGKILL"
    scene.hit(evidence, *CRASHES, attempt=attempt, resumes=MEMORY)


def copy_damaged(scene: Scene) -> None:
    """Flips a bit of the newest copy, and kills all ranks. The next attempt must resume from the checkpoint before
    it."""
    _must_have_copies(scene)
    scene.wait("a checkpoint", lambda: bool(list_checkpoints(scene.run.checkpoints)), scene.patience_s)
    pids, copy, memory = _newest_copy(scene)
    attempt = scene.newest()
    name = min(name for name in memory.names() if name.endswith(".safetensors") and copy.token in name)
    data = bytearray(memory.read(name))
    at = scene.dice.randrange(len(data))
    data[at] ^= 1
    memory.remove(name)
    memory.write(name, [memoryview(data)])
    scene.kill(pids)
    evidence = f"a bit of byte {at} of the copy of step {copy.step} in memory flipped, and all ranks got SIGKILL"
    scene.hit(evidence, *CRASHES, attempt=attempt, resumes=DISK)


def _must_have_copies(scene: Scene) -> None:
    if not scene.is_ours:
        raise NotPossibleHere("the program has its own checkpoints, and no copies in memory")
    if not scene.cluster.ranks_are_here:
        raise NotPossibleHere("the ranks run on other machines, and so do their copies")


def _newest_copy(scene: Scene) -> tuple[list[int], CheckpointInfo, MemoryStorage]:
    """Stops all ranks when they have a copy that is newer than all checkpoints. Returns their pids, the copy, and the
    memory of rank 0's node."""
    memory = _memory(scene)
    for _ in range(TRIES):
        scene.wait("a copy in memory", lambda: _ahead(scene, memory) is not None, scene.patience_s)
        pids = frozen(scene)
        copy = _ahead(scene, memory)
        if copy is not None:
            return pids, copy, memory
        scene.thaw(pids)
    raise Missed("no copy was newer than all checkpoints when the ranks were stopped")


def _memory(scene: Scene) -> MemoryStorage:
    scene.wait("rank 0", lambda: bool(scene.live.ranks().get(0)), scene.patience_s)
    first = scene.live.ranks()[0][-1]
    key, node = (processes.variable(first, name) for name in (keeper.KEY, "SLURMD_NODENAME"))
    if not key:
        raise NotPossibleHere("the nodes keep no copies of the state: they need Linux, and sbatch's own script")
    return MemoryStorage(key.partition(" ")[0], node, life=1 << 20)


def _ahead(scene: Scene, memory: MemoryStorage) -> CheckpointInfo | None:
    """Returns the newest copy if it is newer than all checkpoints."""
    try:
        copies, _ = scan(memory)
    except OSError:  # the keeper has not started yet
        return None
    saved = list_checkpoints(scene.run.checkpoints)
    return copies[-1] if copies and (not saved or copies[-1].age > saved[-1].age) else None
