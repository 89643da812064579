"""The drills, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clusterdp.rehearse.drills import copies, losses, saves, sizes, stops, strikes
from clusterdp.rehearse.drills.scene import Scene

NO_CONFIG: tuple[str, ...] = ()
FROM_DISK = ("checkpoint.memory_s=0",)  # ranks restart from the disk, and not from the memory of their nodes
COPIES = ("checkpoint.memory_s=0.2",)
COPIES_ALONE = (*COPIES, "checkpoint.every_s=null", "checkpoint.every_steps=null")
HANGS = ("restart.hang_after_s=8", "restart.on_hang=restart")
SPARE = ("resources.spare_nodes=1",)
# These settings allow more attempts, because each moment of a save costs an attempt.
NO_LIMITS = (
    "restart.max_crashes=1000",
    "restart.max_no_progress=1000",
    "restart.max_attempts=null",
    *(f"restart.{cause}.limit=null" for cause in ("crash", "start", "memory", "hung")),
)


@dataclass(frozen=True)
class Drill:
    """A drill."""

    name: str  # the drill's name, for --only
    about: str  # the fault in words
    do: Callable[[Scene], None]
    config: tuple[str, ...] = NO_CONFIG  # overrides of the config for programs with our loop
    always: tuple[str, ...] = NO_CONFIG  # overrides of the config for all programs
    other_size: bool = False  # whether the job has a range of nodes, and goes on on another number of them
    only_here: bool = False  # whether the fault needs ranks on this machine, and no job is submitted elsewhere


DRILLS = (
    Drill("preempted", "preempted with a grace time", stops.preempted),
    Drill("preempted-no-grace", "preempted without a grace time", stops.preempted_without_grace),
    Drill("preempted-twice", "preempted, and again during the restore", stops.preempted_twice),
    Drill("preempted-at-start", "preempted before the first step", stops.preempted_before_the_first_step),
    Drill("preempted-in-warmup", "preempted while the learning rate warms up", stops.preempted_in_warm_up),
    Drill("preempted-in-evaluation", "preempted while it evaluates", stops.preempted_in_evaluation),
    Drill("preempted-at-end", "preempted at the last step", stops.preempted_at_the_last_step),
    Drill("out-of-time", "out of time", stops.out_of_time),
    Drill("out-of-time-thrice", "out of time, three times in a row", stops.out_of_time_thrice),
    Drill("rank-killed", "a rank is killed", losses.rank_killed),
    Drill("restarted-from-memory", "killed, with the state in memory", copies.restarted_from_memory, COPIES_ALONE),
    Drill("copy-damaged", "the copy of the state in memory is damaged", copies.copy_damaged, COPIES),
    Drill("rank-hung", "a rank hangs", losses.rank_hung, HANGS),
    Drill("node-lost", "a node fails", losses.node_lost, always=("resources.spare_nodes=0",)),
    Drill("node-replaced", "a node fails, with a spare one", losses.node_replaced, COPIES, SPARE, only_here=True),
    Drill(
        "batch-host-lost",
        "the first node fails, with a spare one",
        losses.batch_host_lost,
        always=SPARE,
        only_here=True,
    ),
    Drill(
        "node-dropped",
        "a node fails, and the ranks go on on those that are left",
        losses.node_replaced,
        COPIES,
        always=("resources.spare_nodes=0",),
        other_size=True,
        only_here=True,
    ),
    Drill("fewer-nodes", "comes back on fewer nodes", sizes.fewer_nodes, other_size=True, only_here=True),
    Drill(
        "more-nodes", "comes back on fewer nodes, and then on more", sizes.more_nodes, other_size=True, only_here=True
    ),
    Drill("node-stopped", "a node stands still for seconds", losses.node_stopped),
    Drill(
        "killed-while-saving",
        "killed at moments of a save, each in turn",
        strikes.killed_while_saving,
        FROM_DISK,
        always=NO_LIMITS,
    ),
    Drill("disk-full", "the disk is full during a save, and free again later", saves.disk_full_while_saving),
    Drill("checkpoint-damaged", "the newest checkpoint is damaged", saves.newest_checkpoint_damaged, FROM_DISK),
)
NAMES = tuple(drill.name for drill in DRILLS)


def drill_of(name: str) -> Drill:
    return next(drill for drill in DRILLS if drill.name == name)
