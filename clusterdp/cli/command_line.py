"""`main`: runs a command line, and returns its exit code.

Exit codes: 0 done; 1 the job failed, check found an error, or checkpoints are bad or differ; 2 a mistake in the config
or the words; 3 Slurm refused; 4 no such run, or the run does not allow this now; 5 an error of checkpoints; 6 the ranks
did not find each other; 7 the fake cluster failed; 130 Ctrl-C; 143 the job was cancelled.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

from clusterdp.cli import streams
from clusterdp.cli.arguments import parser, read_options
from clusterdp.errors import ClusterdpError, OutputError


def main(words: Sequence[str] | None = None) -> int:
    # Imports and configs make objects that are never freed. Garbage collection among these objects takes a tenth of the
    # time until a verb starts.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)  # no garbage collection at the exit: saves 15 ms of each submit
    with streams.prepared():
        return _main(sys.argv[1:] if words is None else words)


def _main(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from clusterdp.cli import completion

        completion.answer(parser())
    debug = False
    try:
        options = read_options(words)
        debug = options.debug
        code: int = options.verb(options)
        sys.stdout.flush()  # here, a BrokenPipeError is still handled
        return code
    except BrokenPipeError:  # as in `clusterdp logs | head`
        streams.abandon(sys.stdout)
        return 141
    except KeyboardInterrupt:
        return 130
    except (ClusterdpError, UnicodeEncodeError, OSError) as error:
        if debug:
            raise
        if isinstance(error, OutputError):
            streams.abandon(sys.stdout)
        streams.complain(error)
        return error.exit_code if isinstance(error, ClusterdpError) else 2 if isinstance(error, ValueError) else 4
