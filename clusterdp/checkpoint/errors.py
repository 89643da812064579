"""Two more branches of the tree in clusterdp.errors.

CheckpointError           exit 5
├── ClaimLost             exit 5   another attempt owns the folder now: nothing was committed or deleted any more
└── LostContact           exit 5   a rank died or hung while all were agreeing
"""

from __future__ import annotations

import errno

from clusterdp.errors import CheckpointError


class ClaimLost(CheckpointError):
    pass


class LostContact(CheckpointError):
    pass


def not_saved(where: str, error: OSError) -> CheckpointError:
    """The error for what the storage said while a save was written or committed, with what to do."""
    remedy = "Look at the file system; the checkpoint before this one is as it was."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free some space there, or keep fewer checkpoints."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Make the folder writable for this user on every node."
    return CheckpointError(f"{where}: {error.strerror or error}. {remedy}")


class FailedElsewhere(Exception):
    """Another rank has failed, and says why at the next agreement. It never leaves this package."""
