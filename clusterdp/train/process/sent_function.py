"""The entry of submit_function() and submit_map(): calls the function in the run folder, and leaves its result."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from clusterdp.errors import EntryError, RunError
from clusterdp.plainfile import read_own, write_durably
from clusterdp.rundir import RunDir
from clusterdp.train.job import JobHandle
from clusterdp.train.process.launched_rank import pickled


def main(job: JobHandle, number: int = 0) -> None:
    """Collective, as the function is. A stop for a preemption leaves no result: the next attempt calls it again."""
    run = RunDir(Path(os.environ["CLUSTERDP_RUN_DIR"]))
    try:
        path, packed = pickle.loads(read_own(run.path / "function.pkl"))
        sys.path += [folder for folder in path if folder not in sys.path]  # the snapshot of the code comes first
        function, args, kwargs = pickle.loads(packed)
    except Exception as error:  # user code runs here, and may raise anything
        said = f"{type(error).__name__}: {error}. Import or create inside of it what a new process lacks."
        raise EntryError(f"{run.path}/function.pkl: cannot be read in a rank: {said}") from None
    # The classes of the user's main script or notebook can then be pickled by their names, too.
    own = getattr(function, "__globals__", {})
    vars(sys.modules["__main__"]).update({name: own[name] for name in own if not name.startswith("__")})
    try:
        value = function(*args, **kwargs)
        result = pickled(value) if job.rank == 0 else b""
        if result is None:
            raise RunError(f"the return value, a {type(value).__name__}, cannot be pickled. Return tensors or numbers.")
    except Exception as error:
        _leave(run, error)
        raise
    if job.rank == 0:
        write_durably(run.result, result, mode=0o600)


def _leave(run: RunDir, error: Exception) -> None:
    """Leaves the error of the first rank that fails: errors of others may follow from it."""
    text = "".join(traceback.format_exception(error))
    told: Any = (pickled(error), f"{type(error).__name__}: {error}", text)
    file = run.attempt(os.environ["CLUSTERDP_ATTEMPT"]).raised
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            out.write(pickle.dumps(told))
    except OSError:  # there already, or a full disk
        return
