"""Plan: everything that a submission writes and sends, before it begins.

`clusterdp submit --dry-run` prints the plan, and `submit` carries it out. There is no other path.
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
from clusterdp.launch.entry_check import check_entry
from clusterdp.launch.installed_check import check_installed
from clusterdp.launch.render.job_secrets import check_secrets, secret_paths
from clusterdp.launch.render.script import Script, render
from clusterdp.launch.render.script_spec import ScriptSpec, make_spec
from clusterdp.rundir import Ledger, RunDir, write_durably

if TYPE_CHECKING:  # modules for a real submission load only then: a dry run is a tenth faster
    from clusterdp.launch.job import Job
    from clusterdp.launch.send.lock import RunLock
    from clusterdp.launch.snapshot.code_snapshot import CodeSnapshot


@dataclass(frozen=True)
class Plan:
    spec: ScriptSpec
    script: Script
    run: RunDir
    code_of: RunDir | None = None  # the run whose snapshot it copies; None: it takes one of the submit directory

    def carry_out(self) -> tuple[Job, CodeSnapshot | None]:
        """Makes the run folder and submits. The folder is removed again if it cannot be filled or sbatch refuses. It
        stays if sbatch may have accepted the job, which needs it."""
        from clusterdp.launch.send.new_folder import new_folder

        with new_folder(self.run, named=bool(self.spec.config.run_dir)) as lock:
            taken = self._write()
            return self.send(lock), taken

    def send(self, lock: RunLock) -> Job:
        """Submits the run folder to Slurm. Raises SubmitInDoubt if there may be a job whose id is unknown."""
        from clusterdp.launch.send.answers import find_job, known_jobs

        backend = importlib.import_module(f"clusterdp.launch.send.{self.spec.config.backend}")
        known = known_jobs(self.run)
        about = {
            "name": self.spec.config.name,
            "entry": self.spec.config.entry,
            "backend": self.spec.config.backend,
            "dir": str(self.spec.submit_dir),
            "folder": str(self.run.path.absolute()),
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
            from clusterdp.launch.send.answers import with_key

            raise with_key(error, self.spec.config) from None
        try:
            Ledger(self.run, f"submit-{job.id}", "submit").write("submitted", job=job.id, **about)
        except OSError as error:
            raise SubmitInDoubt(
                f"{self.run.path}: job {job.id} is submitted, but that cannot be written down: {error.strerror}. "
                f"Make room, or end the job: `scancel {job.id}`."
            ) from None
        return job

    def _write(self) -> CodeSnapshot | None:
        """Writes the whole run folder, or nothing."""
        from clusterdp.launch.send.new_folder import empty, make_subfolders
        from clusterdp.launch.snapshot import code_snapshot, source_record

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
        """Writes config, rules and script. Each file is complete at any time, because a job of the run may start just
        now. Only the owner can read them, with any umask; the user's umask goes with the job."""
        from clusterdp.launch.snapshot.batch_copy import write_batch

        write_durably(self.run.config, config_module.dump(self.spec.config), mode=0o600)
        write_batch(self.run.path / "batch", self.script.rules)
        write_durably(self.run.script, self.script.text, mode=0o600)


def make_plan(config: Config) -> Plan:
    """Returns the plan of a new run. Reads templates, writes nothing."""
    if config.sweep.given:
        raise ConfigError("sweep: is several runs, where one is meant. Use clusterdp.submit_sweep(), or leave it out.")
    submit_dir = Path.cwd()
    return plan_for(config, RunDir(new_path(config, submit_dir)), submit_dir)


def new_path(config: Config, submit_dir: Path) -> Path:
    """Returns the folder of a new run, or of a new sweep."""
    named = Path(config.run_dir).expanduser() if config.run_dir else Path("runs", new_name(config.name))
    return Path(os.path.normpath(submit_dir / named))


def plan_for(config: Config, run: RunDir, submit_dir: Path, code_of: RunDir | None = None) -> Plan:
    """Returns the plan for this run folder, which exists already for `resume`. code_of: see Plan."""
    check_secrets(config)
    shared = Path(os.path.realpath(run.code)) if run.code.is_symlink() else None  # a sweep's snapshot
    spec = make_spec(config, run.path, submit_dir, sys.executable, shared)
    if config.entry and can_be_judged(spec):
        code = next((each.code for each in (run, code_of) if each and each.code.is_dir()), submit_dir)
        check_entry(config.entry, config.params, code, elsewhere(config))
        if not elsewhere(config):
            check_installed(config)
    if config.backend == "submitit":
        from clusterdp.launch.send.submitit import preview

        return Plan(spec, preview(spec), run, code_of)
    return Plan(spec, render(spec), run, code_of)


def can_be_judged(spec: ScriptSpec) -> bool:
    """Returns whether the job runs with this interpreter and without a container: its modules are then known here."""
    return spec.python == sys.executable and not spec.config.launch.container.image


def elsewhere(config: Config) -> bool:
    """Returns whether setup, modules or PYTHONPATH may add modules that are unknown here."""
    return bool(config.launch.setup or config.launch.modules or "PYTHONPATH" in config.launch.env)


def submit(config: Config | str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = ()) -> Job:
    """Submits a run from Python: a Config, a YAML file, or a dictionary of the same keys. Returns at once."""
    if isinstance(config, Mapping):
        config = config_module.from_mapping(config, overrides)
    elif not isinstance(config, Config):
        config = config_module.load(config, overrides)
    job, _ = make_plan(config).carry_out()
    return job


def new_name(name: str) -> str:
    """Returns `digits-20260131-235959-1f2e`: readable, sorted by time, different on two login nodes in one second."""
    word = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "job"
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
