"""Why a fault has not landed."""

from __future__ import annotations


class Missed(Exception):
    """The fault has not landed: the run was over first, or what it waits for did not come."""


class Inapplicable(Exception):
    """The fault cannot happen to this job, or cannot be made on this machine. Its text is the reason."""
