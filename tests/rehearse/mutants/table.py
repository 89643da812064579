"""Which drill finds each mutant, and the words that name its fault rightly or wrongly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Causes that a diagnosis may name. One that is not a mutant's own is wrong.
CAUSES = (
    "is in no checkpoint",
    "random numbers",
    "was not restored",
    "no handler for SIGTERM",
    "ignores SIGTERM",
    "ends without a save",
    "handler does not stop the training",
    "handler calls a collective",
    "the warning is shorter than the save",
    "half written",
    "saved in place",
    "several ranks write one file",
    "port is hard-coded",
)
FAILED, LOST_WORK = "failed", "lost work"
NOT_CAUGHT, NOT_NAMED, NAMED_WRONGLY, NAMED = "not caught", "caught, not named", "caught, named wrongly", "named"
BESIDE = "files beside the end state differ in words alone: the drill passes"


@dataclass(frozen=True)
class Mutant:
    """verdicts: any of them counts as caught. rightly: one of these is in the diagnosis. besides: of CAUSES, those that
    are true of it as well. config: but for `command`. missed: why a rehearsal does not name it yet."""

    drill: str
    verdicts: tuple[str, ...]
    rightly: tuple[str, ...]
    besides: tuple[str, ...] = ()
    ranks: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    missed: str = ""

    def outcome(self, verdict: str, diagnosis: str) -> str:
        if verdict not in self.verdicts:
            return NOT_CAUGHT
        if any(cause in diagnosis for cause in CAUSES if cause not in (*self.rightly, *self.besides)):
            return NAMED_WRONGLY
        return NAMED if any(words in diagnosis for words in self.rightly) else NOT_NAMED


def compared(*files: str) -> dict[str, Any]:
    return {"rehearse": {"compare": [*files]}}


MUTANTS = {
    # A save that is not whole, or is not there, when it is interrupted.
    "delete_first": Mutant("killed-while-saving", (LOST_WORK,), ("last.pt", "saved step"), ranks=2),
    "symlink_removed": Mutant(
        "killed-while-saving",
        (LOST_WORK,),
        ("latest", "all that was saved"),
        ranks=2,
        config=compared("ckpt/iter_0000060/model.pt", "ckpt/iter_0000060/training.pt"),
    ),
    "pointer_first": Mutant(
        "killed-while-saving",
        (FAILED,),
        ("latest.json", "No such file"),
    ),
    "in_place_every_step": Mutant("killed-while-saving", (FAILED,), ("saved in place",), ("half written",)),
    "two_files_mixed": Mutant(
        "killed-while-saving",
        (FAILED, LOST_WORK),
        ("optimizer.pt", "model.safetensors"),
        config=compared("optimizer.pt", "model.safetensors"),
    ),
    "shards_apart": Mutant(
        "killed-while-saving",
        (FAILED,),
        ("ranks went on from different checkpoints",),
        ranks=2,
    ),
    "clears_full_disk": Mutant("disk-full", (LOST_WORK,), ("saved step", "deleted")),
    "swallows_full_disk": Mutant("disk-full", (LOST_WORK,), ("saved step",), config=compared("step_0060.bin")),
    # The warning.
    "looks_once_an_epoch": Mutant(
        "preempted", (FAILED, LOST_WORK), ("SIGTERM",), ("handler does not stop the training",), ranks=2
    ),
    "daemon_saver": Mutant(
        "preempted",
        (FAILED, LOST_WORK),
        ("params.pt.tmp", "ends without a save"),
        ("ends without a save",),
        missed="the step of a save is taken for that at which its file was renamed",
    ),
    "atexit_only": Mutant("preempted", (FAILED,), ("no handler for SIGTERM",)),
    "collective_in_handler": Mutant("preempted", (FAILED,), ("handler calls a collective",), ranks=2),
    # A resume that finds nothing, or the wrong file.
    "node_tmp": Mutant("node-lost", (FAILED, LOST_WORK), ("/tmp/",)),
    "rank0_shm": Mutant("node-lost", (FAILED, LOST_WORK), ("/dev/shm/",), ranks=2),
    "host_folder": Mutant("node-lost", (LOST_WORK,), ("checkpoints/n", "all that was saved")),
    "resume_swallowed": Mutant("node-lost", (LOST_WORK,), ("checkpoint.pth", "all that was saved")),
    "dated_folder": Mutant(
        "preempted",
        (LOST_WORK,),
        ("outputs/", "all that was saved"),
        config=compared("newest:outputs/*/*/checkpoint.pt"),
    ),
    "sorted_as_text": Mutant("preempted", (LOST_WORK,), ("step_8.pt",)),
    # State that is not in the checkpoint, or is not taken from it.
    "gan_second_optimizer": Mutant(
        "preempted",
        (FAILED,),
        ("opt_d",),
        ranks=2,
    ),
    "partial_restore": Mutant("preempted", (FAILED,), ("optimizer", "exp_avg")),
    "module_prefix": Mutant("preempted", (FAILED,), ("state_dict", "module.0.weight"), ranks=2),
    "ema_forgotten": Mutant("preempted", (FAILED,), ("ema",)),
    "ema_of_entry": Mutant(
        "preempted", (FAILED,), ("ema.pt",), ranks=2, config={"entry": "ema_of_entry:main"}, missed=BESIDE
    ),
    "scheduler_anew": Mutant("preempted", (FAILED,), ("scheduler.last_epoch", "learning rate")),
    "sampler_from_start": Mutant("preempted", (FAILED,), ("model",), ranks=2),
    "accumulation_lost": Mutant("preempted", (FAILED,), ("net", "model")),
    "augmentation_draws": Mutant("preempted", (FAILED,), ("model",)),
    "step_off_by_one": Mutant(
        "preempted",
        (FAILED,),
        ("done twice", "done again"),
        ranks=2,
        missed="the diagnosis names what differs, and no cause",
    ),
    "loss_times_ranks": Mutant(
        "fewer-nodes",
        (FAILED,),
        ("model", "optimizer"),
        config={
            "entry": "loss_times_ranks:main",
            "train": {"global_batch_size": 32},
            "resources": {"nodes": "1-2", "tasks_per_node": 1},
        },
    ),
    "stale_ranks": Mutant(
        "node-dropped",
        (FAILED,),
        ("model", "optimizer"),
        config={
            "entry": "stale_ranks:main",
            "train": {"global_batch_size": 32},
            "resources": {"nodes": "1-2", "tasks_per_node": 1},
        },
    ),
    "rounds_by_ranks": Mutant(
        "fewer-nodes",
        (FAILED,),
        ("model", "optimizer"),
        config={
            "entry": "rounds_by_ranks:main",
            "train": {"global_batch_size": 32, "exact": "any_ranks"},
            "resources": {"nodes": "1-2", "tasks_per_node": 1},
        },
    ),
    "log_truncated": Mutant("preempted", (FAILED,), ("losses.csv",), missed=BESIDE),
}
IN_TEST_ALL = ("delete_first", "partial_restore", "sorted_as_text", "swallows_full_disk")
