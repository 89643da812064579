"""SweepPlan: everything that the submission of a sweep will write and send, made before the submission begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import config as config_module
from clusterdp.config import Config, Given
from clusterdp.config.elements import Element, Sweep, in_words, resolve_sweep
from clusterdp.errors import ConfigError
from clusterdp.rundir import SweepDir, write_durably
from clusterdp.slurm import commands
from clusterdp.submission.entry_check import Function, check_params, find_function
from clusterdp.submission.installed_check import check_installed
from clusterdp.submission.plan import can_be_judged, elsewhere, new_path, options_after, read_given
from clusterdp.submission.render.batch_rules import rules_of
from clusterdp.submission.render.job_secrets import check_secrets, secret_paths
from clusterdp.submission.render.script import Script, render, template_values
from clusterdp.submission.render.script_spec import ArraySpec, ScriptSpec, lines_of, make_spec, with_environ
from clusterdp.submission.send.new_folder import empty
from clusterdp.submission.snapshot import code_snapshot, source_record
from clusterdp.submission.snapshot.batch_copy import write_batch
from clusterdp.submission.snapshot.code_snapshot import CodeSnapshot
from clusterdp.submission.snapshot.sent_project import code_is_here, submit_directory

if TYPE_CHECKING:
    from clusterdp.submission.snapshot.code_snapshot import CodeSnapshot
    from clusterdp.submission.sweep.arrays import SentSweep

WORDS = {"command", "script"}  # template values that contain the words of the program
BY_SUBMIT = {"backend", "run_dir", "snapshot", "local"}  # keys that are read once for the whole sweep, at its submit


@dataclass(frozen=True)
class SweepPlan:
    sweep: Sweep
    spec: ScriptSpec  # the spec of the first array
    scripts: Sequence[tuple[ArraySpec, Script]]  # each array with its script
    folder: SweepDir

    def after_options(self) -> list[str]:
        """Returns the options by which sbatch waits for the runs of `after:`."""
        after = self.spec.config.after
        if after and len(self.scripts) > 1 and any(each["state"] == "each" for each in after["runs"]):
            raise ConfigError("after: each: is for sweeps of one array, and this one has several. Leave out `each:`.")
        return options_after(self.spec.config, len(self.sweep.elements))

    def carry_out(self, functions: Sequence[bytes] = ()) -> tuple[SentSweep, CodeSnapshot | None]:
        """Makes the folders of the sweep, and submits the arrays. If sbatch refuses the first array, the folders are
        removed again."""
        from clusterdp.submission.send.new_folder import new_folder
        from clusterdp.submission.sweep.arrays import submit_arrays

        with new_folder(self.folder.files, named=bool(self.spec.config.run_dir)) as lock:
            taken = write_folder(self)
            for number, function in enumerate(functions):  # those of submit_map(), pickled
                write_durably(self.folder.element(number).function, function, mode=0o600)
            return submit_arrays(self, lock), taken


def make_sweep_plan(given: Given) -> SweepPlan:
    """Returns the plan of a sweep, and writes no file. Raises ConfigError for an invalid value, with the element that
    has the value."""
    sweep = resolve_sweep(given)
    first, submit_dir = sweep.elements[0].config, submit_directory()
    if first.backend == "submitit":
        raise ConfigError("backend: submitit has no sweeps. Use backend: sbatch.")
    check_secrets(first)
    check_template(first.launch.template)
    folder = SweepDir(new_path(first, submit_dir))
    spec = make_spec(first, folder.path, submit_dir, sys.executable)
    check_same_script(sweep.elements, spec)
    check_words_differ(sweep.elements, spec)
    if first.entry and can_be_judged(spec) and code_is_here():
        _check_entries(sweep.elements, submit_dir)
    arrays = _arrays(len(sweep.elements), sweep.settings.parallel)
    scripts = [(array, render(replace(spec, array=array))) for array in arrays]
    return SweepPlan(sweep, replace(spec, array=arrays[0]), scripts, folder)


def submit_sweep(
    config: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = (), sweeps: Sequence[str] = ()
) -> SentSweep:
    """Submits a sweep from Python: a YAML file or a dictionary of the same keys, which has `sweep:`, or with `sweeps`
    in the form of `--sweep`. Returns a Job for each element, without waiting for the jobs."""
    given = read_given(config, overrides, sweeps)
    if not given.sweeps:
        raise ConfigError("sweep: is empty. Write e.g. sweep: {grid: {params.lr: [0.1, 0.01]}}.")
    sent, _ = make_sweep_plan(given).carry_out()
    return sent


def _arrays(count: int, parallel: int | None) -> list[ArraySpec]:
    """Returns the arrays of a sweep: a single array, or as many as Slurm's MaxArraySize requires. The first element of
    each array is a multiple of a power of ten."""
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


def write_folder(plan: SweepPlan) -> CodeSnapshot | None:
    """Writes all files of the sweep's folder. After an error, no file is left."""
    files, spec = plan.folder.files, plan.spec
    taken = None
    try:
        files.events.mkdir()
        if spec.config.snapshot.enabled:
            config = spec.config
            taken = code_snapshot.take(spec.submit_dir, files.code, config.snapshot, files.path, secret_paths(config))
        source_record.write_record(files, spec)
        links = _links(plan)
        texts: dict[str, tuple[Any, str]] = {}
        for element in plan.sweep.elements:
            _write_element(plan, element, links, texts)
        plan.folder.write_table(spec.config.name, [element.values for element in plan.sweep.elements])
        write_batch(files.path / "batch", plan.scripts[0][1].rules)
        for array, script in plan.scripts:
            write_durably(plan.folder.script(array.offset), script.text, mode=0o600)
    except BaseException:
        empty(files)
        raise
    return taken


def _links(plan: SweepPlan) -> list[str]:
    """Returns the names of an element's links to files of the sweep."""
    files = plan.folder.files
    records = [record.name for record in (files.source, files.source_diff) if record.exists()]
    return [files.code.name, *records] if plan.spec.config.snapshot.enabled else records


def _write_element(plan: SweepPlan, element: Element, links: Sequence[str], texts: dict[str, tuple[Any, str]]) -> None:
    """Writes the files of an element's run folder. The folders that an attempt can make are left out, because making a
    folder takes as long as writing a file."""
    run, spec = plan.folder.element(element.number), plan.spec
    for folder in (run.path, run.events, run.checkpoints):
        os.mkdir(folder)
    for name in links:
        os.symlink(f"../{name}", run.path / name)
    config = with_environ(_with_own_checkpoints(element))
    _write(run.config, config_module.dump(config, texts))
    if spec.kind == "command":
        words = make_spec(config, run.path, spec.submit_dir, spec.python).command
        _write(run.path / "words", "".join(f"{word}\0" for word in words))
    elif spec.kind == "script":
        _write(run.path / "script.sh", lines_of(config.script, "script") + "\n")


def _with_own_checkpoints(element: Element) -> Config:
    """Returns the element's config, in which `checkpoint.url` ends in a folder of the element's own, with its number as
    the name."""
    saving = element.config.checkpoint
    if not saving.url:
        return element.config
    return replace(element.config, checkpoint=replace(saving, url=f"{saving.url.rstrip('/')}/{element.number}"))


def _write(path: Path, text: str) -> None:
    """Writes a file that only the owner can read, like the files of a single run."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text.encode())


def check_same_script(elements: Sequence[Element], spec: ScriptSpec) -> None:
    """Raises ConfigError, with the key, for the first element that needs another script than element 0. `spec` is the
    spec of element 0."""
    first = elements[0].config
    wanted = _rendered_from(first, spec)
    for element in elements[1:]:
        if _rendered_from(element.config, spec) != wanted:
            raise _refusal(element, elements[0], spec, wanted)
    for key in elements[0].values:
        if key.partition(".")[0] in BY_SUBMIT:
            raise ConfigError(f"sweep: {key} is for the sweep as a whole. Submit runs that differ in it apart.")


def check_words_differ(elements: Sequence[Element], spec: ScriptSpec) -> None:
    """Raises ConfigError if the swept params have no effect on the words of the program's command line."""
    keys = elements[0].values
    if spec.kind == "entry" or len(elements) == 1 or not all(key.startswith("params.") for key in keys):
        return
    first = elements[0].config
    if all(each.config.command == first.command and each.config.script == first.script for each in elements):
        key = next(iter(keys))
        raise ConfigError(
            f"sweep: {key} is nowhere in {spec.kind}:, so all elements do the same. Write ${{{key}}} there."
        )


def _rendered_from(config: Config, spec: ScriptSpec) -> dict[str, Any]:
    own = make_spec(config, spec.run_dir, spec.submit_dir, spec.python)
    values = {**template_values(own), "rules": rules_of(own)}
    return {name: value for name, value in values.items() if name not in WORDS}


def _refusal(element: Element, first: Element, spec: ScriptSpec, wanted: dict[str, Any]) -> ConfigError:
    """Returns the error for an element that needs another script. The error names the swept key that makes the
    difference."""
    for key in element.values:
        section = key.partition(".")[0]
        alone = replace(first.config, **{section: getattr(element.config, section)})
        if _rendered_from(alone, spec) != wanted:
            said = f"{key} changes the job's script"
            break
    else:
        one, other = element.config, first.config
        names = [each.name for each in fields(Config) if getattr(one, each.name) != getattr(other, each.name)]
        said = f"{in_words(element.values)} changes the job's script, by {', '.join(names)}"
    return ConfigError(
        f"sweep: {said}, and all elements have one: the same resources, environment and restart policies. "
        "Submit runs that differ in it apart."
    )


def check_template(template: str | None) -> None:
    """Raises ConfigError if the user's own template does not use `element`: without `element`, all elements would run
    in one folder."""
    if template and Path(template).is_file() and "element" not in Path(template).read_text(errors="replace"):
        raise ConfigError(
            f"launch.template: {template} has no {{{{ element }}}}, so it is for a single run. "
            "See how srun.sbatch.j2 sets run_dir."
        )
