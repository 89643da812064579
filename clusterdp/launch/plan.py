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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import config as config_module
from clusterdp.config import Config
from clusterdp.errors import RunError
from clusterdp.launch.entrycheck import check_entry
from clusterdp.launch.installed import check_installed
from clusterdp.launch.script import Script, checkpoint_url, render
from clusterdp.launch.spec import JobSpec, make_spec
from clusterdp.rundir import Ledger, RunDir

if TYPE_CHECKING:  # what only a real submission needs is loaded then: a dry run is a tenth quicker
    from clusterdp.launch.job import Job
    from clusterdp.launch.snapshot import Taken


@dataclass(frozen=True)
class Plan:
    spec: JobSpec
    script: Script
    run: RunDir

    @property
    def checkpoint_url(self) -> str:
        return checkpoint_url(self.spec)

    def carry_out(self) -> tuple[Job, Taken | None]:
        """Make the run folder and submit. Whatever fails, a folder that was made here is gone again."""
        if is_a_run(self.run.path):
            raise RunError(
                f"run_dir: {self.run.path} holds a run already. `clusterdp resume {self.run.path}` goes on with it; "
                "for a new one name another folder."
            )
        made = _first_missing(self.run.path)
        try:
            taken = self._write()
            return self.send(), taken
        except OSError as error:
            _remove(made, self.run.path)
            raise RunError(
                f"run_dir: {self.run.path}: cannot be written: {error.strerror}. Name another folder."
            ) from None
        except BaseException:
            _remove(made, self.run.path)
            raise

    def send(self) -> Job:
        """Hand the run folder to Slurm."""
        backend = importlib.import_module(f"clusterdp.launch.{self.spec.config.backend}")
        job: Job = backend.send(self.spec, self.script, self.run)
        Ledger(self.run, f"submit-{job.id}", "submit").write(
            "submitted",
            job=job.id,
            name=self.spec.config.name,
            entry=self.spec.config.entry,
            backend=self.spec.config.backend,
            dir=str(self.spec.submit_dir),
            cluster=os.environ.get("SLURM_CONF", ""),
            from_step=self.spec.config.restart.from_step,
        )
        return job

    def _write(self) -> Taken | None:
        path = self.run.path
        path.mkdir(parents=True, exist_ok=True)
        for folder in (self.run.events, self.run.metrics, path / "attempts", self.run.claims, self.run.checkpoints):
            folder.mkdir()
        taken = None
        if self.spec.config.snapshot.enabled:
            from clusterdp.launch import snapshot

            taken = snapshot.take(self.spec.submit_dir, self.run.code, self.spec.config.snapshot, leave_out=path)
        self.write_config()
        return taken

    def write_config(self) -> None:
        self.run.config.write_text(config_module.dump(self.spec.config), encoding="utf-8")
        self.run.script.write_text(self.script.text, encoding="utf-8")


def make_plan(config: Config, submit_dir: Path | None = None) -> Plan:
    """The plan of a new run. Reads templates, writes nothing."""
    submit_dir = (submit_dir or Path.cwd()).absolute()
    named = Path(config.run_dir).expanduser() if config.run_dir else Path("runs", new_name(config.name))
    path = submit_dir / named
    return plan_for(config, RunDir(Path(os.path.normpath(path))), submit_dir)


def plan_for(config: Config, run: RunDir, submit_dir: Path) -> Plan:
    """The plan for this very run folder: `resume` takes the folder that is there."""
    spec = make_spec(config, run.path, submit_dir, sys.executable)
    if config.entry and spec.python == sys.executable and not config.launch.container.image:
        code = run.code if run.code.is_dir() else submit_dir
        # What setup, modules or PYTHONPATH bring along is not known here.
        elsewhere = bool(config.launch.setup or config.launch.modules or "PYTHONPATH" in config.launch.env)
        check_entry(config.entry, config.params, code, elsewhere)
        if not elsewhere:
            check_installed(config)
    if config.backend == "submitit":
        from clusterdp.launch.submitit import preview

        return Plan(spec, preview(spec), run)
    return Plan(spec, render(spec), run)


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


def _first_missing(path: Path) -> Path | None:
    """The highest folder of `path` that is not there yet; None if all of it is."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    return missing[-1] if missing else None


def _remove(made: Path | None, run: Path) -> None:
    import shutil

    if made is not None:
        shutil.rmtree(made, ignore_errors=True)
        return
    for entry in run.iterdir() if run.is_dir() else ():  # the folder was there, and empty: leave it so
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
