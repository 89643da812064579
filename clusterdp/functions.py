"""A function as a job, without YAML: submit_function() and submit_map(), from a script, a notebook or a prompt.

    job = clusterdp.submit_function(train, 0.1, epochs=3, resources={"nodes": 2, "gpus_per_node": "4"})
    job.result()

The function and its arguments are a file in the run folder, which only this user can read, and each rank runs it
(train/process/sent_function.py). Rank 0 leaves the return value there; a rank that fails, its error. Such a file is
unpickled only if it belongs to the user who unpickles it, and nobody else can write to it.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterdp import config as config_module
from clusterdp.errors import ConfigError, EntryError, RunError, SubmitError
from clusterdp.plainfile import read_own
from clusterdp.submission.job import Job

ENTRY = "clusterdp.train.process.sent_function:main"
OURS = {"entry", "params", "command", "script", "sweep", "backend"}
_local: list[Any] = []  # the fake cluster of this process


class FunctionError(Exception):
    """The cause of an error that Job.result() raises: the traceback in the rank."""


class FunctionJob(Job):
    """A Job whose result() is the return value of its function."""

    def result(self, timeout_s: float | None = None) -> Any:
        """Waits for the job, and returns what the function returned on rank 0. Raises the error of the function, with
        the traceback in the rank as its cause; RunError if the run ended in another way, or after `timeout_s`."""
        self.wait(timeout_s, poll_s=0.5)
        try:
            return pickle.loads(read_own(self.run.result))
        except FileNotFoundError:
            pass
        except Exception as error:  # the classes of the user run here
            raise RunError(
                f"{self.run.result}: cannot be read here: {type(error).__name__}: {error}. Return numbers or tensors."
            ) from None
        for attempt in reversed(self.run.attempts()):
            if attempt.raised.exists():
                pickled, line, traceback = pickle.loads(read_own(attempt.raised))
                raise _error(pickled, line) from FunctionError(f"in {attempt.name}:\n\n{traceback}")
        path = self.run.path
        raise RunError(f"{path}: it is {self.state}, and has no result. `clusterdp why {path}` has the reason.")


def _error(pickled: bytes | None, line: str) -> BaseException:
    try:
        error = pickle.loads(pickled) if pickled else None
    except Exception:
        error = None
    return error if isinstance(error, BaseException) else RunError(line)


def submit_function(
    function: Callable[..., Any],
    /,
    *args: Any,
    resources: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    cluster: str = "auto",
    **kwargs: Any,
) -> Job:
    """Submits `function(*args, **kwargs)` as a job, and returns without waiting for it. Job.result() returns what it
    returns.

    function: also a lambda, or a function of a notebook or of the main script. Each rank calls it; own_job() in it
    returns the handle, with which it is preempted and resumed exactly. resources: as in a config. config: other
    sections of a config, e.g. {"restart": {"max_crashes": 3}}; without it, an error of the function is final. cluster:
    local starts a fake cluster here, which ends with this process. Raises EntryError if the function or its arguments
    cannot be pickled.
    """
    from clusterdp.submission.plan import make_plan, read_given

    given = read_given(_values(function, resources, config))
    plan = make_plan(config_module.resolve(given).config)
    _choose(cluster, plan.spec)
    job, _ = plan.carry_out(function=_packed(function, args, kwargs))
    return FunctionJob(job.id, job.run, cluster=job.cluster)


def submit_map(
    function: Callable[..., Any],
    /,
    *iterables: Iterable[Any],
    resources: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    cluster: str = "auto",
) -> list[Job]:
    """Submits a call of `function` for each of the arguments, taken as map() takes them, in one job array. Returns a
    Job for each, in order. The rest is as in submit_function()."""
    from clusterdp.submission.plan import read_given
    from clusterdp.submission.sweep.plan import make_sweep_plan

    calls = [*zip(*iterables, strict=False)]
    if not calls:
        return []
    points = [{"params.number": number} for number in range(len(calls))]
    values = {**_values(function, resources, config), "params": {"number": 0}, "sweep": {"points": points}}
    plan = make_sweep_plan(read_given(values))
    _choose(cluster, plan.spec)
    sent, _ = plan.carry_out(functions=[_packed(function, each, {}) for each in calls])
    return [FunctionJob(job.id, job.run, cluster=job.cluster) for job in sent.jobs]


def _values(
    function: Callable[..., Any], resources: Mapping[str, Any] | None, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    more = dict(config or {})
    if taken := OURS & more.keys():
        raise ConfigError(f"config: {min(taken)} is set by clusterdp, because a function runs. Leave it out.")
    name = getattr(function, "__name__", "function").strip("<>")
    restart = {"max_crashes": 0, **(more.pop("restart", None) or {})}
    return {"name": name, "entry": ENTRY, "restart": restart, "resources": dict(resources or {}), **more}


def _packed(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> bytes:
    import cloudpickle

    try:
        # The rank finds the user's modules on the first, before it reads the second.
        return pickle.dumps((sys.path, cloudpickle.dumps((function, tuple(args), dict(kwargs)))))
    except Exception as error:  # user code runs here, and may raise anything
        name = getattr(function, "__name__", repr(function))
        said = f"{type(error).__name__}: {error}"
        raise EntryError(f"{name} cannot be sent to the ranks: {said}. Create such objects inside it.") from None


def _choose(cluster: str, spec: Any) -> None:
    """Makes this process submit to the cluster that is asked for."""
    from clusterdp.slurm import commands

    if cluster not in ("auto", "slurm", "local"):
        raise ConfigError(f"cluster: {cluster!r} is none of auto, slurm, local. Write one of them.")
    if cluster == "local" and not _local:
        from clusterdp.fakeslurm.cluster import FakeCluster
        from clusterdp.rehearse.clusters.job_cluster import shape_for

        _local.append(FakeCluster(shape=shape_for(spec.config, spec.ranks_per_node, spare=3)).up(owned=True))
        atexit.register(_local[0].down)
        os.environ.update(_local[0].environ())
    elif cluster == "auto" and not commands.have_slurm():
        raise SubmitError("cluster: no sbatch here. cluster='local' runs it on this machine.")
