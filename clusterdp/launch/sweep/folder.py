"""The folder of a sweep, written: the table, the scripts, one snapshot, and a run folder for each element.

The files of the elements are not forced to the disk one by one: for 1,000 elements that takes minutes on some file
systems. A login node that crashes meanwhile may lose some of them; sweep.json has what it takes to write them again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import config as config_module
from clusterdp.config import Config
from clusterdp.config.elements import Element
from clusterdp.launch import code_snapshot, source_record
from clusterdp.launch.batch_copy import write_batch
from clusterdp.launch.code_snapshot import CodeSnapshot
from clusterdp.launch.job_secrets import secret_paths
from clusterdp.launch.new_folder import empty
from clusterdp.launch.script_spec import lines_of, make_spec
from clusterdp.rundir import write_durably

if TYPE_CHECKING:
    from clusterdp.launch.sweep.plan import SweepPlan


def write_folder(plan: SweepPlan) -> CodeSnapshot | None:
    """Write the whole folder, or nothing."""
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
    """What an element has from the sweep."""
    files = plan.folder.files
    records = [record.name for record in (files.source, files.source_diff) if record.exists()]
    return [files.code.name, *records] if plan.spec.config.snapshot.enabled else records


def _write_element(plan: SweepPlan, element: Element, links: Sequence[str], texts: dict[str, tuple[Any, str]]) -> None:
    """Without the folders that an attempt makes when it begins: to make one takes as long as to write a file."""
    run, spec = plan.folder.element(element.number), plan.spec
    for folder in (run.path, run.events, run.checkpoints):
        os.mkdir(folder)
    for name in links:
        os.symlink(f"../{name}", run.path / name)
    config = _with_own_checkpoints(element)
    _write(run.config, config_module.dump(config, texts))
    if spec.kind == "command":
        words = make_spec(config, run.path, spec.submit_dir, spec.python).command
        _write(run.path / "words", "".join(f"{word}\0" for word in words))
    elif spec.kind == "script":
        _write(run.path / "script.sh", lines_of(config.script, "script") + "\n")


def _with_own_checkpoints(element: Element) -> Config:
    """`checkpoint.url` is a folder for all: each element has a folder of its number there."""
    saving = element.config.checkpoint
    if not saving.url:
        return element.config
    return replace(element.config, checkpoint=replace(saving, url=f"{saving.url.rstrip('/')}/{element.number}"))


def _write(path: Path, text: str) -> None:
    """For the owner alone, as what a single run has."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text.encode())
