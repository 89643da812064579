"""clusterdp: runs a multi-node data-parallel training from one YAML file, on any Slurm cluster, and resumes it without
losing work.

    import clusterdp

    job = clusterdp.submit("train.yaml", ["params.lr=0.1"])
    job.wait()

`submit_sweep` submits a run for each combination of swept values. `submit_function` and `submit_map` submit a function
of a script or a notebook, whose return value is Job.result(). `sweep(run)` returns the table of the runs' results, as
dictionaries. `launch` runs a function in several ranks on this machine, from a script or a notebook. `load` reads a
file into a Config, without submitting a job. RunDir names the files of a run. Every error is a ClusterdpError. A public
name is imported when it is first used, so that importing clusterdp is fast.

    cli/           the verbs of the command line
    config/        the config tree, and how a file is read into it
    submission/    login node: from a config to a submitted job
    check/         login node: problems of a run, found before it is submitted
    batch/         first node of a job: decides whether an attempt starts, and acts on its end
    train/         compute node: the training, from a rank's environment to its last step
    checkpoint/    compute node: checkpoints, saved and loaded by all ranks
    operate/       login node: commands for a submitted run
    remote/        --on HOST: the verbs on a cluster behind ssh
    fakeslurm/     a Slurm in a folder
    rehearse/      a test that a job ends in the same state after disturbances
    rundir/        the run folder: names of its files, and its ledger
    storage/       bytes at a URL
    slurm/         Slurm's commands, variables and texts
    functions.py   a function as a job
    recipes/       small real trainings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clusterdp.config import Config, load
    from clusterdp.errors import ClusterdpError
    from clusterdp.functions import submit_function, submit_map
    from clusterdp.operate.sweep.results import sweep
    from clusterdp.rundir import RunDir
    from clusterdp.submission.job import Job
    from clusterdp.submission.plan import submit
    from clusterdp.submission.sweep.plan import submit_sweep
    from clusterdp.train.process.launch import launch

_WHERE = {
    "ClusterdpError": "clusterdp.errors",
    "Config": "clusterdp.config",
    "Job": "clusterdp.submission.job",
    "RunDir": "clusterdp.rundir",
    "launch": "clusterdp.train.process.launch",
    "load": "clusterdp.config",
    "submit": "clusterdp.submission.plan",
    "submit_function": "clusterdp.functions",
    "submit_map": "clusterdp.functions",
    "submit_sweep": "clusterdp.submission.sweep.plan",
    "sweep": "clusterdp.operate.sweep.results",
}

__all__ = [
    "ClusterdpError",
    "Config",
    "Job",
    "RunDir",
    "__version__",
    "launch",
    "load",
    "submit",
    "submit_function",
    "submit_map",
    "submit_sweep",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'clusterdp' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)
