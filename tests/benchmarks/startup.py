"""How long the verbs take to start, beside bare Python and a ten-line script that renders the same."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from clusterdp import config
from clusterdp.rundir import Ledger, RunDir
from clusterdp.submission.plan import make_plan
from clusterdp.submission.render import script
from clusterdp.submission.render.shipped_files import shipped_folder
from tests.benchmarks.table import Measure, rounds_of, show, take_turns

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "digits.yaml"
BARE = "python -c pass"
ARGPARSE = "python, argparse, no options"
BY_HAND = "ten lines: omegaconf, jinja2, same template"


def main() -> None:
    rounds = rounds_of(__doc__, 30)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        rows = take_turns(measures(Path(name)), rounds, beside())
    show("Start-up of the command line", rows)


def measures(folder: Path) -> dict[str, Measure]:
    run_dir = folder / "run"
    dry_run = ["submit", str(CONFIG), f"run_dir={run_dir}", "--dry-run"]
    values = folder / "values.yaml"
    OmegaConf.save(values_for(run_dir), values)
    by_hand = [sys.executable, str(Path(__file__).with_name("by_hand.py")), str(values)]
    by_hand += [str(shipped_folder("sbatch_templates")), "srun.sbatch.j2"]
    # They must do the same, to the byte; otherwise the ratio would mean nothing.
    assert output(by_hand) == output(clusterdp(*dry_run))

    finished = finished_run(folder / "finished")
    return {
        BARE: timed([sys.executable, "-c", "pass"]),
        ARGPARSE: timed([sys.executable, "-c", "import argparse; argparse.ArgumentParser().parse_args()"]),
        "clusterdp --help": timed(clusterdp("--help")),
        "clusterdp status RUN": timed(clusterdp("status", str(finished.path))),
        BY_HAND: timed(by_hand),
        "clusterdp submit --dry-run": timed(clusterdp(*dry_run)),
    }


def beside() -> dict[str, str]:
    return {
        ARGPARSE: BARE,
        "clusterdp --help": ARGPARSE,
        "clusterdp status RUN": ARGPARSE,
        "clusterdp submit --dry-run": BY_HAND,
    }


def clusterdp(*words: str) -> list[str]:
    """The installed command, as a user types it."""
    return [str(Path(sys.executable).with_name("clusterdp")), *words]


def timed(command: Sequence[str]) -> Measure:
    def measure() -> float:
        began = time.perf_counter()
        output(command)
        return time.perf_counter() - began

    return measure


def output(command: Sequence[str]) -> bytes:
    quiet = subprocess.DEVNULL
    return subprocess.run(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, check=True).stdout


def values_for(run_dir: Path) -> dict[str, Any]:
    """What the template is rendered with, quoted already, as a file by hand would have it."""
    spec = make_plan(config.load(CONFIG, [f"run_dir={run_dir}"])).spec

    def quoted(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): quoted(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [quoted(each) for each in value]
        if isinstance(value, script.Shell) or not isinstance(value, str):
            return str(value) if isinstance(value, str) else value
        return shlex.quote(value) if value else ""  # a condition of the template holds for no empty one

    return {name: quoted(value) for name, value in script.template_values(spec).items()}


def finished_run(folder: Path) -> RunDir:
    """A run with a story of two attempts, for `status` to tell."""
    run = RunDir(folder)
    for number, cause in enumerate(("preempted", "done")):
        attempt = run.attempt(f"17.{number}")
        attempt.logs.mkdir(parents=True)
        attempt.cause.write_text(f"{cause}\n")
        Ledger(run, attempt.name, "batch").write("started", job="17", restart=number, nodes="n[1-2]")
        Ledger(run, attempt.name, "rank0").write("saved", step=100 * (number + 1), seconds=0.1, bytes=1000)
        last = {"event": "finished"} if cause == "done" else {"event": "requeued", "cause": cause, "of": attempt.name}
        Ledger(run, attempt.name, "batch").write(**last)
    Ledger(run, "submit-17", "submit").write("submitted", job="17", name="digits", backend="sbatch")
    run.config.write_text("name: digits\nentry: clusterdp.recipes.digits:main\n")
    run.script.write_text("#!/bin/bash\n")
    return run


if __name__ == "__main__":
    main()
