"""A job that fails for a file that lies in the submit folder but not in the snapshot."""

from __future__ import annotations

import os
import re
from pathlib import Path

from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.why.first_failure import Failure

# As Python says it, and as the C library's perror does.
NOT_FOUND = re.compile(r"No such file or directory: '([^']+)'|([^\s:'\"]+)['\"]?: No such file or directory")


def left_out(history: RunHistory, failure: Failure) -> str | None:
    """What to do, in one line; None if no such file is the cause."""
    submit_dir = next((str(event["dir"]) for event in history.events if event.get("dir")), "")
    code = history.run.code.absolute()
    if not submit_dir or not code.is_dir():
        return None
    for python, other in NOT_FOUND.findall("\n".join(failure.lines)):
        wanted = Path(os.path.normpath(code / (python or other)))
        if not wanted.is_relative_to(code) or wanted.exists():
            continue
        name = wanted.relative_to(code)
        if Path(submit_dir, name).exists():
            missing = [part for part in (name, *name.parents) if part.name and not (code / part).exists()][-1]
            return (
                f"{name} is in {submit_dir}, but not in the snapshot: does git ignore it? "
                f"Submit a new run with snapshot: {{link: [{missing}]}}"
            )
    return None
