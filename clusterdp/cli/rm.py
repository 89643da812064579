"""`clusterdp rm`: asks the user, and removes each run while the lock of the run is held."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clusterdp.cli import streams
from clusterdp.errors import ConfigError, RunError, SlurmError
from clusterdp.operate.change.remove import Removal, check_over, plan_removal, remove, show_removals, what_is_left
from clusterdp.operate.checkpoints.prune import confirmed
from clusterdp.operate.output.formatting import shown_path
from clusterdp.submission.send.lock import RunLock
from clusterdp.wording import size


def rm(options: argparse.Namespace) -> int:
    """Removes the runs in `options.runs`, which names at least one run. Returns the exit code."""
    code = 0
    removals: dict[Path, Removal] = {}
    for word in options.runs:
        try:
            each = plan_removal(word)
            removals[each.run.path] = each
        except (RunError, SlurmError) as error:  # after an error, the other runs are still removed
            streams.complain(error)
            code = error.exit_code
    if not removals:
        return code
    if not (options.dry_run or options.yes or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise ConfigError("rm: no terminal to ask on. --yes removes, --dry-run only says what would go.")
    if not options.yes:
        show_removals(list(removals.values()), sys.stdout)
    if options.dry_run:
        return code
    if not options.yes and not confirmed(input):
        print("nothing was removed")
        return code
    for each in removals.values():
        try:
            print(_remove(each), flush=True)
        except (RunError, SlurmError) as error:
            streams.complain(error)
            code = error.exit_code
        except KeyboardInterrupt:
            if left := what_is_left(each.run):
                streams.complain(RunError(left))
            raise
    return code


def _remove(removal: Removal) -> str:
    """Removes one run, and returns a message about the result."""
    run = removal.run
    if removal.rest:
        remove(run)
    else:
        with RunLock(run):  # no resume can begin now; check_over() finds an earlier one
            check_over(run)
            remove(run)
    stays = f"; its checkpoints stay in {removal.stays}" if removal.stays else ""
    return f"{shown_path(run.path)}: removed, {size(removal.nbytes)} freed{stays}"
