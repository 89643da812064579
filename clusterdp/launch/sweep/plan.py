"""SweepPlan: all that the submission of a sweep would write and send, before anything is written or sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import config as config_module
from clusterdp.config import Given
from clusterdp.config.elements import Element, Sweep, resolve_sweep
from clusterdp.errors import ConfigError
from clusterdp.launch.entry_check import Function, check_params, find_function
from clusterdp.launch.installed_check import check_installed
from clusterdp.launch.job_secrets import check_secrets
from clusterdp.launch.plan import can_be_judged, elsewhere, new_path
from clusterdp.launch.script import Script, render
from clusterdp.launch.script_spec import ArraySpec, ScriptSpec, make_spec
from clusterdp.launch.sweep.same_script import check_same_script, check_template, check_words_differ
from clusterdp.rundir import SweepDir
from clusterdp.slurm import commands

if TYPE_CHECKING:
    from clusterdp.launch.code_snapshot import CodeSnapshot
    from clusterdp.launch.sweep.arrays import SentSweep


@dataclass(frozen=True)
class SweepPlan:
    """`spec`: of the first array; `scripts`: of each array, with what it runs."""

    sweep: Sweep
    spec: ScriptSpec
    scripts: Sequence[tuple[ArraySpec, Script]]
    folder: SweepDir

    def carry_out(self) -> tuple[SentSweep, CodeSnapshot | None]:
        """Make the folders and submit. If sbatch refuses the first array, the folder is removed again."""
        from clusterdp.launch.new_folder import new_folder
        from clusterdp.launch.sweep.arrays import submit_arrays
        from clusterdp.launch.sweep.folder import write_folder

        with new_folder(self.folder.files, named=bool(self.spec.config.run_dir)) as lock:
            taken = write_folder(self)
            return submit_arrays(self, lock), taken


def make_sweep_plan(given: Given) -> SweepPlan:
    """ConfigError for a value that is refused, with the element that has it. Writes nothing."""
    sweep = resolve_sweep(given)
    first, submit_dir = sweep.elements[0].config, Path.cwd()
    if first.backend == "submitit":
        raise ConfigError("backend: submitit has no sweeps. Use backend: sbatch.")
    check_secrets(first)
    check_template(first.launch.template)
    folder = SweepDir(new_path(first, submit_dir))
    spec = make_spec(first, folder.path, submit_dir, sys.executable)
    check_same_script(sweep.elements, spec)
    check_words_differ(sweep.elements, spec)
    if first.entry and can_be_judged(spec):
        _check_entries(sweep.elements, submit_dir)
    arrays = _arrays(len(sweep.elements), sweep.settings.parallel)
    scripts = [(array, render(replace(spec, array=array))) for array in arrays]
    return SweepPlan(sweep, replace(spec, array=arrays[0]), scripts, folder)


def submit_sweep(
    config: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = (), sweeps: Sequence[str] = ()
) -> SentSweep:
    """Submit a sweep from Python: a YAML file or a dictionary of the same keys, with `sweep:`, or with `sweeps` as
    `--sweep` takes them. Returns at once, with a Job for each element."""
    given = config_module.read(config, overrides, sweeps)
    if not given.sweeps:
        raise ConfigError("sweep: is empty. Write e.g. sweep: {grid: {params.lr: [0.1, 0.01]}}.")
    sent, _ = make_sweep_plan(given).carry_out()
    return sent


def _arrays(count: int, parallel: int | None) -> list[ArraySpec]:
    """One array, or as many as Slurm's MaxArraySize asks for: then each begins at a multiple of a power of ten."""
    most = commands.max_array_size() if commands.have_slurm() else commands.MAX_ARRAY_SIZE
    if count <= most:
        return [ArraySpec(0, count, parallel=parallel)]
    if most < 10:
        raise ConfigError(f"sweep: MaxArraySize is {most} here: no arrays of {count} elements. Submit runs one by one.")
    part = 10 ** (len(str(most)) - 1)
    return [ArraySpec(offset, min(part, count - offset), part, parallel) for offset in range(0, count, part)]


def _check_entries(elements: Sequence[Element], submit_dir: Path) -> None:
    functions: dict[str, Function | None] = {}
    first = elements[0].config
    for element in elements:
        config = element.config
        entry = config.entry or ""
        try:
            if entry not in functions:
                functions[entry] = find_function(entry, submit_dir, elsewhere(config))
            if (function := functions[entry]) is not None:
                check_params(entry, function, config.params)
        except ConfigError as error:
            raise type(error)(f"{element}: {error}") from None
        if (element.number == 0 or config.metrics is not first.metrics) and not elsewhere(config):
            check_installed(config)
