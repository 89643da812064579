"""Two more branches of the tree in clusterdp.errors.

CheckpointError           exit 5
├── ClaimLost             exit 5   another attempt owns the folder now: nothing was committed or deleted any more
└── LostContact           exit 5   a rank died or hung while all were agreeing
"""

from __future__ import annotations

from clusterdp.errors import CheckpointError


class ClaimLost(CheckpointError):
    pass


class LostContact(CheckpointError):
    pass
