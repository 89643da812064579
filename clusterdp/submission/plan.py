"""Plan: everything that a submission will write and send, made before the submission begins.

`clusterdp submit --dry-run` prints the plan, and `submit` carries it out. No other code writes or sends a submission.
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
from clusterdp.errors import ConfigError, SubmitError, SubmitInDoubt
from clusterdp.rundir import Ledger, RunDir, write_durably
from clusterdp.slurm.jobid import asking, home_of
from clusterdp.submission.entry_check import check_entry
from clusterdp.submission.installed_check import check_installed
from clusterdp.submission.render.job_secrets import check_secrets, secret_paths
from clusterdp.submission.render.script import Script, render
from clusterdp.submission.render.script_spec import ScriptSpec, make_spec
from clusterdp.submission.snapshot.sent_project import code_is_here, submit_directory

if TYPE_CHECKING:  # a dry run, which does not import these modules, is a tenth faster
    from clusterdp.config import Given
    from clusterdp.submission.job import Job
    from clusterdp.submission.send.lock import RunLock
    from clusterdp.submission.snapshot.code_snapshot import CodeSnapshot


@dataclass(frozen=True)
class Plan:
    spec: ScriptSpec
    script: Script
    run: RunDir
    code_of: RunDir | None = None  # the run whose snapshot is copied; None: of the submit directory

    def carry_out(self, function: bytes | None = None) -> tuple[Job, CodeSnapshot | None]:
        """Makes the run folder, with the pickled `function` of submit_function(), and submits the run. The folder is
        removed again if writing its files fails, or if sbatch refuses the script. If sbatch may have accepted the job,
        the folder stays, because the job needs the folder."""
        from clusterdp.submission.send.new_folder import new_folder

        with new_folder(self.run, named=bool(self.spec.config.run_dir)) as lock:
            taken = self._write()
            if function is not None:
                write_durably(self.run.function, function, mode=0o600)
            return self.send(lock), taken

    def send(self, lock: RunLock) -> Job:
        """Submits the run folder to Slurm. Raises SubmitInDoubt if sbatch may have accepted the job, but the job id is
        unknown."""
        from clusterdp.submission.send.answers import find_job, known_jobs

        backend = importlib.import_module(f"clusterdp.submission.send.{self.spec.config.backend}")
        clusters = self.spec.clusters or os.environ.get("SLURM_CLUSTERS", "")
        with asking(clusters):
            options = self.after_options()
        known = known_jobs(self.run)
        about = {
            "name": self.spec.config.name,
            "entry": self.spec.config.entry,
            "backend": self.spec.config.backend,
            "dir": str(self.spec.submit_dir),
            "folder": str(self.run.path.absolute()),
            "cluster": home_of(clusters),
            "from_step": self.spec.config.restart.from_step,
            **after_record(self.spec.config),
        }
        lock.check()
        try:
            with asking(clusters):
                job: Job = backend.send(self.spec, self.script, self.run, options)
        except SubmitInDoubt as doubt:
            try:
                with asking(clusters):
                    job = backend.adopt(find_job(self.run, self.spec.config.name, known, doubt), self.run)
            except SubmitInDoubt:
                with suppress(OSError):
                    Ledger(self.run, "submit-unknown", "submit").write("submit-in-doubt", **about)
                raise
        except SubmitError as error:
            from clusterdp.submission.send.answers import with_key

            raise with_key(error, self.spec.config) from None
        try:
            about["cluster"] = home_of(job.cluster)
            Ledger(self.run, f"submit-{job.id}", "submit").write("submitted", job=job.id, **about)
        except OSError as error:
            raise SubmitInDoubt(
                f"{self.run.path}: job {job.id} is submitted, but that cannot be written down: {error.strerror}. "
                f"Make room, or end the job: `scancel {job.id}`."
            ) from None
        if self.spec.config.after:
            from clusterdp.operate.queue.dependency import note_follower

            note_follower(self.spec.config.after, job.id, self.run)
        return job

    def after_options(self) -> list[str]:
        """Returns the options by which sbatch waits for the runs of `after:`. A run that has begun waits no more.
        Raises RunError if such a run can no longer get there."""
        return options_after(self.spec.config) if self.spec.config.after and not self.run.attempts() else []

    def _write(self) -> CodeSnapshot | None:
        """Writes all files of the run folder. After an error, no file is left."""
        from clusterdp.submission.send.new_folder import empty, make_subfolders
        from clusterdp.submission.snapshot import code_snapshot, source_record

        path, taken = self.run.path, None
        try:
            make_subfolders(self.run)
            if self.code_of:
                taken = code_snapshot.take_over(self.code_of, self.run)
                source_record.copy_record(self.code_of, self.run)
            else:
                if self.spec.config.snapshot.enabled:
                    config = self.spec.config
                    taken = code_snapshot.take(
                        self.spec.submit_dir, self.run.code, config.snapshot, path, secret_paths(config)
                    )
                source_record.write_record(self.run, self.spec)
            self.write_config()
        except BaseException:
            empty(self.run)
            raise
        return taken

    def write_config(self) -> None:
        """Writes config, rules and script. Each file is replaced in one step, because a job of the run may start at any
        moment. Only the owner can read the files, whatever the umask is; the umask itself is passed to the job."""
        from clusterdp.submission.snapshot.batch_copy import write_batch

        write_durably(self.run.config, config_module.dump(self.spec.config), mode=0o600)
        write_batch(self.run.path / "batch", self.script.rules)
        write_durably(self.run.script, self.script.text, mode=0o600)


def make_plan(config: Config) -> Plan:
    """Returns the plan of a new run. Templates are read, and no file is written."""
    if config.sweep.given:
        raise ConfigError("sweep: is several runs, where one is meant. Use clusterdp.submit_sweep(), or leave it out.")
    submit_dir = submit_directory()
    return plan_for(config, RunDir(new_path(config, submit_dir)), submit_dir)


def new_path(config: Config, submit_dir: Path) -> Path:
    """Returns the folder of a new run, or of a new sweep."""
    named = Path(config.run_dir).expanduser() if config.run_dir else Path("runs", new_name(config.name))
    return Path(os.path.normpath(submit_dir / named))


def plan_for(config: Config, run: RunDir, submit_dir: Path, code_of: RunDir | None = None) -> Plan:
    """Returns the plan for a run folder, which already exists in a `resume`. `code_of` is described in Plan."""
    check_secrets(config)
    shared = Path(os.path.realpath(run.code)) if run.code.is_symlink() else None  # the snapshot of the run's sweep
    spec = make_spec(config, run.path, submit_dir, sys.executable, shared)
    check_archive(spec.archive)
    if config.entry and can_be_judged(spec) and code_is_here():
        code = next((each.code for each in (run, code_of) if each and each.code.is_dir()), submit_dir)
        check_entry(config.entry, config.params, code, elsewhere(config))
        if not elsewhere(config):
            check_installed(config)
    if config.backend == "submitit":
        from clusterdp.submission.send.submitit import preview

        return Plan(spec, preview(spec), run, code_of)
    return Plan(spec, render(spec), run, code_of)


def check_archive(archive: str) -> None:
    """Raises ConfigError if launch.environment is not a file that can be read."""
    if archive and not (Path(archive).is_file() and os.access(archive, os.R_OK)):
        raise ConfigError(
            f"launch.environment: {archive} is not a file that can be read. Pack an environment first: "
            f"`conda pack -o {archive}`, or `tar -czf {archive} -C ENVIRONMENT .`"
        )


def can_be_judged(spec: ScriptSpec) -> bool:
    """Returns whether the job runs with this interpreter and without a container: only then the modules of the job can
    be looked for here."""
    return spec.python == sys.executable and not spec.config.launch.container.image


def elsewhere(config: Config) -> bool:
    """Returns whether setup, modules or PYTHONPATH may add modules that this interpreter does not find."""
    return bool(config.launch.setup or config.launch.modules or "PYTHONPATH" in config.launch.env)


def read_given(
    what: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Given:
    """Returns the layers of a config, in which `after:` has the folders of its runs. `after` has the words of
    --after."""
    given = config_module.read(what, overrides, sweeps)
    if not (after or given.values.get("after")):
        return given
    from clusterdp.operate.queue.dependency import with_after

    return with_after(given, after)


def options_after(config: Config, elements: int | None = None) -> list[str]:
    """Returns the options of sbatch for a job that follows the runs of `after:`. elements: see dependency()."""
    if not config.after:
        return []
    from clusterdp.operate.queue.dependency import dependency

    waits = dependency(config.after, elements)
    return [f"--dependency={waits}", "--kill-on-invalid-dep=yes"] if waits else []


def after_record(config: Config) -> dict[str, Any]:
    """Returns the part of the record of a submit that says which runs the run follows."""
    return {"after": [[each["state"], each["run"]] for each in config.after["runs"]]} if config.after else {}


def submit(config: Config | str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = ()) -> Job:
    """Submits a run from Python: a Config, a YAML file, or a dictionary of the same keys. Returns without waiting for
    the job."""
    if not isinstance(config, Config):
        config = config_module.resolve(read_given(config, overrides)).config
    job, _ = make_plan(config).carry_out()
    return job


def new_name(name: str) -> str:
    """Returns a name such as `digits-20260131-235959-1f2e`. Such names are readable and sort by time, and two login
    nodes make different names in the same second."""
    word = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "job"
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
