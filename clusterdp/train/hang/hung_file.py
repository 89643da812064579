"""The file `hung` of an attempt: it has ended because it hung; in it the nodes of the ranks that were behind."""

from __future__ import annotations

from contextlib import suppress

from clusterdp.rundir import Attempt, write_durably


def leave_hung(attempt: Attempt) -> None:
    """Unless it is there already. The nodes are those of the last report; none if there is none."""
    with suppress(OSError):  # a full disk: then it counts as a crash
        if not attempt.hung.exists():
            nodes = attempt.hang_nodes.read_text() if attempt.hang_nodes.exists() else "\n"
            write_durably(attempt.hung, nodes)
