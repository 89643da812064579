"""The backend `submitit`: submitit writes and submits the script, which runs the batch program before and after srun.

submitit by itself does not react to a preemption: submitit ignores TERM and waits for USR2, which Slurm does not send
at a preemption. Therefore clusterdp's worker handles both signals. After the ranks have stopped and saved, rank 0 asks
Slurm about the job and sends USR2 to itself, and submitit's own handler requeues the job. After a crash, the script's
lines after srun requeue the job, as in clusterdp's own script."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from clusterdp.batch.processes.slurm import GOES_ON, state_of
from clusterdp.errors import ConfigError, SlurmError, SubmitError, SubmitInDoubt
from clusterdp.rundir import RunDir
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import Submitted
from clusterdp.submission.job import Job
from clusterdp.submission.render.batch_rules import rules_of
from clusterdp.submission.render.script import Script, directive, render_part
from clusterdp.submission.render.script_spec import ScriptSpec

NEVER = 1_000_000  # turns off submitit's limit of time-outs: clusterdp checks its own limits
RUNS_IN = "clusterdp.train.worker"  # named, not imported: the login node may have no torch


class Task:
    """The callable that submitit pickles. Pickle stores only the name of the class: the compute node runs the code in
    the snapshot."""

    def __init__(self, run_dir: str):
        self.run_dir = run_dir

    def __call__(self) -> Any:
        """Runs on every rank of the job. Returns the entry's result; after a stop or a crash, the process exits."""
        self._link_log()
        on_usr2 = signal.getsignal(signal.SIGUSR2)  # submitit's own handler, which requeues the job
        worker = importlib.import_module(RUNS_IN)
        ending = worker.run_in_submitit(self.run_dir)
        if ending.outcome == "done":
            return ending.result
        sys.stdout.flush()
        sys.stderr.flush()
        if ending.outcome == "requeue" and os.environ.get("SLURM_PROCID", "0") == "0" and self._may_requeue():
            signal.signal(signal.SIGUSR2, on_usr2)
            os.kill(os.getpid(), signal.SIGUSR2)
        # Exits without a result, because submitit would take a result for the end of the job.
        os._exit(ending.exit_code)

    def checkpoint(self) -> Any:
        """Called by submitit at a requeue: returns the task of the next attempt. The training's state is already in
        clusterdp's checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Task(self.run_dir))

    def _link_log(self) -> None:
        """Links submitit's log of this rank into the attempt's folder, where `clusterdp logs` reads it."""
        from submitit import JobEnvironment

        log = Path(os.environ["CLUSTERDP_LOGS"], f"rank-{int(os.environ['SLURM_PROCID']):05d}.out")
        if not log.is_symlink():
            log.symlink_to(os.path.relpath(JobEnvironment().paths.stdout, log.parent))

    def _may_requeue(self) -> bool:
        """Returns whether to requeue the job. False for a cancelled job, and for a job that Slurm has already requeued.
        False also if the controller does not answer: the batch program asks again later, and waits longer."""
        if any(Path(self.run_dir, marker).exists() for marker in ("cancelled", "stop")):
            return False
        element, _, restart = os.environ["CLUSTERDP_ATTEMPT"].rpartition(".")
        try:
            job = commands.show_job(element)
        except SlurmError as error:
            print(f"clusterdp: {error}", file=sys.stderr, flush=True)
            return False
        return state_of(job, int(restart)) in GOES_ON


def send(spec: ScriptSpec, script: Script, run: RunDir, options: Sequence[str]) -> Job:
    """Submits through submitit's public interface. Raises SubmitError, with sbatch's text, if sbatch refuses the
    script."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder = run.path / "submitit"
    try:
        folder.mkdir(exist_ok=True)
        with _private(folder), _clean_environ():
            job = _executor(spec, folder).submit(Task(str(run.path)))
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError, RuntimeError, OSError) as error:
        said = str(getattr(error, "stderr", None) or error)
        if isinstance(error, FailedSubmissionError):  # sbatch succeeded, but submitit found no job id
            raise SubmitInDoubt(f"submitit: {' '.join(said.split())}.") from None
        if not isinstance(error, (FailedJobError, subprocess.CalledProcessError)):  # sbatch was not called
            raise SubmitError(f"submitit: could not submit: {' '.join(said.split())}.") from None
        raise commands.refused("submitit", said, getattr(error.__cause__, "returncode", 1)) from None
    except KeyboardInterrupt:
        raise SubmitInDoubt("submitit: interrupted before sbatch had answered.") from None
    return Job(job.job_id, run, submitit=job, cluster=spec.clusters)


def adopt(sent: Submitted, run: RunDir) -> Job:
    """Renames the pickle that the job waits for by the job id, as submitit does when sbatch prints the id."""
    from submitit import SlurmJob
    from submitit.core.utils import JobPaths

    folder, job = run.path / "submitit", sent.job
    paths = JobPaths(folder, job)
    waiting = [path for path in folder.glob("*.pkl") if re.fullmatch(r"[0-9a-f]{32}", path.stem)]
    if waiting:
        newest = max(waiting, key=lambda path: path.stat().st_mtime)
        paths.move_temporary_file(newest, "submitted_pickle")
    return Job(job, run, submitit=SlurmJob(folder, job), cluster=sent.cluster)


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    """Closes the folder to other users until only the owner can read the script, which contains launch.env. The umask
    cannot be changed for this purpose, because the umask is passed to the job, whose logs follow the user's umask."""
    mode = folder.stat().st_mode & 0o777
    folder.chmod(0o700)
    try:
        yield
    finally:
        for script in folder.glob("*.sh"):
            script.chmod(0o600)
        folder.chmod(mode)


@contextmanager
def _clean_environ() -> Iterator[None]:
    """Removes variables from the environment of this process, which submitit's sbatch inherits. Variables SBATCH_*
    would override the script's options, or make sbatch refuse the script, as SBATCH_REQUEUE=1 does on 26.05."""
    before = dict(os.environ)
    for name in before.keys() - commands.clean_environ(before).keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def preview(spec: ScriptSpec) -> Script:
    """Returns the script that submitit will write. Only this preview uses a private function of submitit."""
    executor = _executor(spec, spec.run_dir / "submitit", for_real=False)
    text = executor._make_submission_file_text(executor._submitit_command_str, "")
    return Script(text, Path(__file__), rules_of(spec))


def _executor(spec: ScriptSpec, folder: Path, for_real: bool = True) -> Any:
    from submitit import SlurmExecutor

    class Preview(SlurmExecutor):  # SlurmExecutor() raises an error without srun on PATH
        @classmethod
        def affinity(cls) -> int:
            return 1

    kind = SlurmExecutor if for_real else Preview
    executor: Any = kind(folder=folder, max_num_timeout=NEVER, python=spec.python)
    executor.update_parameters(**_parameters(spec))
    return executor


def _parameters(spec: ScriptSpec) -> dict[str, Any]:
    """Returns the script's directives for submitit: under submitit's own names, or else as additional parameters."""
    directives = dict(spec.directives())
    for option, value in directives.items():
        directive(option, value)  # raises an error for control characters
        if re.search(r"['\\]", value or ""):
            # submitit quotes values for a shell, but sbatch reads quotes and backslashes in another way
            raise ConfigError(f"--{option}: {value!r} cannot pass through submitit. Leave out quotes and backslashes.")
    if spec.clusters == "all" or "," in spec.clusters:  # submitit does not read the name in sbatch's answer
        raise ConfigError(f"resources.extra.clusters: {spec.clusters} is several. Name one, or use backend: sbatch.")
    for ours in ("output", "open-mode", "signal"):  # submitit sets these itself
        directives.pop(ours, None)
    return {
        "job_name": directives.pop("job-name"),
        "nodes": spec.config.resources.job_nodes,  # which `nodes` below replaces, because submitit knows no range
        "ntasks_per_node": int(cast(str, directives.pop("ntasks-per-node"))),
        "cpus_per_task": int(cast(str, directives.pop("cpus-per-task"))),
        "signal_delay_s": spec.config.launch.grace_s,
        "setup": render_part(spec, "before_submitit.sh").split("\n"),
        "teardown": render_part(spec, "after_submitit.sh").split("\n"),
        "srun_args": [
            *spec.srun_flags(),
            f"--cpus-per-task={spec.config.resources.cpus_per_task}",
            "--kill-on-bad-exit=1",
        ],
        "stderr_to_stdout": True,
        "time": _minutes(directives.pop("time", None)),
        "additional_parameters": {key: True if value is None else value for key, value in directives.items()},
    }


def _minutes(time: str | None) -> int:
    """Returns the minutes of a time limit (MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS), rounded up as in Slurm."""
    if time is None or not time[0].isdigit():
        raise ConfigError(f"resources.time: submitit needs a time limit, not {time}. Write e.g. time: 60 (minutes).")
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    return int(days or 0) * 1440 + hours * 60 + minutes + (seconds > 0)
