"""Errors of checkpoints, in addition to those in clusterdp.errors.

CheckpointError           exit 5
├── ReplicasDiffer        exit 5   tensors differ between ranks: a mistake of the program, or a fault of a machine
├── ClaimLost             exit 5   another attempt owns the folder now; this one stops committing and deleting
└── LostContact           exit 5   a rank died or hung during an agreement of all ranks
"""

from __future__ import annotations

import errno

from clusterdp.errors import CheckpointError, StateError


class ClaimLost(CheckpointError):
    pass


class LostContact(CheckpointError):
    pass


class ReplicasDiffer(StateError):
    pass


def not_saved(where: str, error: OSError) -> CheckpointError:
    """Returns the error to raise when the storage fails during a write or a commit. The message of the error names a
    remedy."""
    remedy = "Look at the file system; the checkpoint before this one is as it was."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free some space there, or keep fewer checkpoints."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Make the folder writable for this user on every node."
    return CheckpointError(f"{where}: {error.strerror or error}. {remedy}")


class FailedElsewhere(Exception):
    """Another rank has failed, and reports the reason at the next agreement. This error is caught within
    clusterdp.checkpoint."""
