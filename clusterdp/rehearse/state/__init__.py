"""The end state of a run: read from its files, and compared with the end state of another run. Torch-free.

The digests of two states are compared first. The bytes of two tensors are read into memory only if their digests
differ.

    end_state       EndState and its leaves
    own_checkpoint  of_run(): from our own checkpoints
    files           of_files(): from the files that a program has left
    candidates      candidates(): the files that may be the end state
    compare         compare(), spread_of(): the differences of two states, and their sizes
    flatten         a tree as leaves by dotted keys
    optimizers      optimizers by their form, and the parameters that they hold
    parts           the part of a training and the rank that a key belongs to
    stored          tensors that are still in their files
    inert_pickle    pickles, read without running anything in them
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
