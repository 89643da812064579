"""How each correct program is run, and the libraries that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DRILLS = ("preempted", "rank-killed", "node-lost", "killed-while-saving", "disk-full")


@dataclass(frozen=True)
class Correct:
    """needs: packages, beside those of the project. config: but for `command`."""

    ranks: int = 1
    needs: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


def _compare(*files: str) -> dict[str, Any]:
    return {"rehearse": {"compare": [*files]}}


CORRECT = {
    # How a save becomes the one to resume from.
    "safetensors_replace": Correct(),
    "symlink_commit": Correct(2, config=_compare("newest:checkpoints/*/model.pt", "newest:checkpoints/*/optimizer.pt")),
    "pointer_last": Correct(),
    "chunked_folder": Correct(config=_compare("weights.npy")),
    "sharded_ranks": Correct(2),
    "dcp_async": Correct(2),
    "numpy_yaml": Correct(),
    "large_checkpoint": Correct(config={"rehearse": {"grace_s": 20}}),
    "saves_every_200_ms": Correct(),
    # How a program behaves.
    "own_requeue": Correct(2),
    "torchrun_elastic": Correct(2, config={"launch": {"launcher": "torchrun"}, "command": ["torchrun_elastic.py"]}),
    "slow_start": Correct(),
    "silent": Correct(2),
    "changes_folder": Correct(),
    "helper_processes": Correct(),
    "noisy": Correct(),
    "gan": Correct(2),
    # Libraries. Where an epoch is not left before its end, a preemption may cost one.
    "transformers_trainer": Correct(needs=("transformers", "accelerate"), config=_compare("final.pt")),
    "accelerate_loop": Correct(2, needs=("accelerate",), config=_compare("final.pt")),
    "lightning_fit": Correct(2, needs=("lightning",), config=_compare("final.pt")),
    "ignite_engine": Correct(needs=("pytorch-ignite",), config=_compare("final.pt")),
    "keras_torch": Correct(needs=("keras",)),
    "skorch_net": Correct(needs=("skorch",), config=_compare("net.pt")),
}
IN_TEST_ALL = ("safetensors_replace", "symlink_commit", "saves_every_200_ms")
