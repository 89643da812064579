"""The end state of a run: read from what it has left, and compared with that of another. Torch-free.

The digests of two states are compared first. Only where these differ are the bytes of two tensors in memory.

    end_state       EndState and its leaves
    own_checkpoint  of_run(): from our own checkpoints
    files           of_files(): from the files that a program has left
    candidates      which files these may be
    compare         compare(), spread_of(): where two states differ, and by how much
    flatten         a tree as leaves by dotted keys
    optimizers      optimizers by their form, and the parameters that they hold
    parts           which part of a training a key belongs to, and which rank
    stored          tensors that still lie in their files
    inert_pickle    pickles, read without running anything of theirs
"""

from clusterdp.rehearse.state.candidates import best_models, candidates
from clusterdp.rehearse.state.compare import Difference, compare, describe, spread_of
from clusterdp.rehearse.state.end_state import RESULTS, EndState, Leaf
from clusterdp.rehearse.state.files import check_patterns, of_files
from clusterdp.rehearse.state.own_checkpoint import of_run

__all__ = [
    "RESULTS",
    "Difference",
    "EndState",
    "Leaf",
    "best_models",
    "candidates",
    "check_patterns",
    "compare",
    "describe",
    "of_files",
    "of_run",
    "spread_of",
]
