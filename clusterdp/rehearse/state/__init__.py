"""The end state of a run: read from its files, and compared with the end state of another run. Torch-free.

The digests of two states are compared first. The bytes of two tensors are read into memory only if their digests
differ.
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
