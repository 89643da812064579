"""Plan: all that a submission would write and send, before anything is written or sent.

`clusterdp submit --dry-run` prints the plan; `submit` carries it out. There is no other path.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import config as config_module
from clusterdp.config import Config
from clusterdp.errors import ClusterdpError, RunError, SubmitError, SubmitInDoubt
from clusterdp.launch.entry_check import check_entry
from clusterdp.launch.installed_check import check_installed
from clusterdp.launch.job_secrets import check_secrets
from clusterdp.launch.script import Script, render
from clusterdp.launch.script_spec import ScriptSpec, make_spec
from clusterdp.rundir import Ledger, RunDir, write_durably

if TYPE_CHECKING:  # what only a real submission needs is loaded then: a dry run is a tenth quicker
    from clusterdp.launch.code_snapshot import CodeSnapshot
    from clusterdp.launch.job import Job
    from clusterdp.launch.lock import RunLock


@dataclass(frozen=True)
class Plan:
    spec: ScriptSpec
    script: Script
    run: RunDir
    code_of: RunDir | None = None  # the run whose code it runs, as it was then; None: that of the submit directory

    def carry_out(self) -> tuple[Job, CodeSnapshot | None]:
        """Make the run folder and submit. If that fails, or sbatch refuses, the folder is removed again. If it is in
        doubt whether sbatch has accepted the job, the folder stays, for there may be a job that needs it."""
        from clusterdp.launch.lock import RunLock

        if is_a_run(self.run.path):
            raise self._holds_a_run()
        missing = [folder for folder in (self.run.path, *self.run.path.parents) if not folder.exists()]
        try:
            self._make_folder()
            with RunLock(self.run) as lock:
                if lock.number != 1:  # another process was quicker, and is through already
                    raise self._holds_a_run()
                taken = self._write()
                return self._send_or_remove(lock), taken
        except OSError as error:
            raise RunError(f"run_dir: {self.run.path}: cannot be written: {error.strerror}. Name another.") from None
        finally:
            _remove_empty(missing)

    def _send_or_remove(self, lock: RunLock) -> Job:
        try:
            return self.send(lock)
        except SubmitInDoubt:
            raise
        except ClusterdpError:
            _empty(self.run)
            raise

    def send(self, lock: RunLock) -> Job:
        """Hand the run folder to Slurm. SubmitInDoubt if there may be a job though none can be named."""
        from clusterdp.launch.in_doubt import find_job, known_jobs

        backend = importlib.import_module(f"clusterdp.launch.{self.spec.config.backend}")
        known = known_jobs(self.run)
        about = {
            "name": self.spec.config.name,
            "entry": self.spec.config.entry,
            "backend": self.spec.config.backend,
            "dir": str(self.spec.submit_dir),
            "cluster": os.environ.get("SLURM_CONF", ""),
            "from_step": self.spec.config.restart.from_step,
        }
        lock.check()
        try:
            job: Job = backend.send(self.spec, self.script, self.run)
        except SubmitInDoubt as doubt:
            try:
                job = backend.adopt(find_job(self.run, self.spec.config.name, known, doubt), self.run)
            except SubmitInDoubt:
                with suppress(OSError):
                    Ledger(self.run, "submit-unknown", "submit").write("submit-in-doubt", **about)
                raise
        except SubmitError as error:
            raise self._with_key(error) from None
        try:
            Ledger(self.run, f"submit-{job.id}", "submit").write("submitted", job=job.id, **about)
        except OSError as error:
            raise SubmitInDoubt(
                f"{self.run.path}: job {job.id} is submitted, but that cannot be written down: {error.strerror}. "
                f"Make room, or end the job: `scancel {job.id}`."
            ) from None
        return job

    def _with_key(self, error: SubmitError) -> SubmitError:
        """sbatch names an option; what stands in the config is its key. Which options it knows, it alone can say."""
        for option, value in self.spec.config.resources.extra.items():
            if re.search(rf"--{re.escape(option)}(?![\w-])", str(error)):
                key = f"resources.extra.{option}: {value!r}"
                return SubmitError(f"{key} is refused by sbatch. Correct it or leave it out. {error}")
        return error

    def _holds_a_run(self) -> RunError:
        return RunError(
            f"run_dir: {self.run.path} holds a run already. `clusterdp resume {self.run.path}` goes on with it; "
            "for a new one name another folder."
        )

    def _make_folder(self) -> None:
        """`runs/`, which the user has not named, gets a .gitignore."""
        if not self.spec.config.run_dir:
            with suppress(FileExistsError):
                self.run.path.parent.mkdir(parents=True)
                (self.run.path.parent / ".gitignore").write_text("*\n")
        self.run.path.mkdir(parents=True, exist_ok=True)

    def _write(self) -> CodeSnapshot | None:
        """Write the whole run folder, or nothing."""
        from clusterdp.launch import code_snapshot, source_record

        path, taken = self.run.path, None
        try:
            for folder in (self.run.events, self.run.metrics, path / "attempts", self.run.claims, self.run.checkpoints):
                folder.mkdir()
            if self.code_of:
                taken = code_snapshot.take_over(self.code_of, self.run)
                source_record.copy_record(self.code_of, self.run)
            else:
                if self.spec.config.snapshot.enabled:
                    taken = code_snapshot.take(
                        self.spec.submit_dir, self.run.code, self.spec.config.snapshot, leave_out=path
                    )
                source_record.write_record(self.run, self.spec)
            self.write_config()
        except BaseException:
            _empty(self.run)
            raise
        return taken

    def write_config(self) -> None:
        """Each file is complete at any time, for a job of the run may start just now. Only the owner can read them,
        whatever the umask, which is the user's and goes with the job."""
        write_durably(self.run.config, config_module.dump(self.spec.config), mode=0o600)
        write_durably(self.run.script, self.script.text, mode=0o600)


def make_plan(config: Config) -> Plan:
    """The plan of a new run. Reads templates, writes nothing."""
    submit_dir = Path.cwd()
    named = Path(config.run_dir).expanduser() if config.run_dir else Path("runs", new_name(config.name))
    path = submit_dir / named
    return plan_for(config, RunDir(Path(os.path.normpath(path))), submit_dir)


def plan_for(config: Config, run: RunDir, submit_dir: Path, code_of: RunDir | None = None) -> Plan:
    """The plan for this very run folder: `resume` takes the folder that is there. code_of: as Plan has it."""
    check_secrets(config.launch)
    spec = make_spec(config, run.path, submit_dir, sys.executable)
    if config.entry and spec.python == sys.executable and not config.launch.container.image:
        code = next((each.code for each in (run, code_of) if each and each.code.is_dir()), submit_dir)
        # What setup, modules or PYTHONPATH bring along is not known here.
        elsewhere = bool(config.launch.setup or config.launch.modules or "PYTHONPATH" in config.launch.env)
        check_entry(config.entry, config.params, code, elsewhere)
        if not elsewhere:
            check_installed(config)
    if config.backend == "submitit":
        from clusterdp.launch.submitit import preview

        return Plan(spec, preview(spec), run, code_of)
    return Plan(spec, render(spec), run, code_of)


def submit(config: Config | str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = ()) -> Job:
    """Submit a run from Python: a Config, a YAML file, or a dictionary of the same keys; returns at once."""
    if isinstance(config, Mapping):
        config = config_module.from_mapping(config, overrides)
    elif not isinstance(config, Config):
        config = config_module.load(config, overrides)
    job, _ = make_plan(config).carry_out()
    return job


def new_name(name: str) -> str:
    """`digits-20260131-235959-1f2e`: readable, sorted by time, and different on two login nodes in one second."""
    word = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "job"
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def is_a_run(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders that were made here, the innermost first, unless other runs lie in them by now."""
    for folder in folders:
        ignore = folder / ".gitignore"
        with suppress(OSError):
            ours_alone = os.listdir(folder) == [ignore.name]
            if ours_alone:
                ignore.unlink()
            try:
                folder.rmdir()
            except OSError:
                if ours_alone:
                    ignore.write_text("*\n")


def _empty(run: RunDir) -> None:
    """The lock goes last: as long as anything is left, the folder is known as a run."""
    import shutil

    for entry in run.path.iterdir():
        if entry != run.submits:
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    shutil.rmtree(run.submits, ignore_errors=True)
