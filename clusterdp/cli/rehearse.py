"""`clusterdp rehearse`: runs a shortened job with each drill, on a fake cluster or on the real cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterdp.cli.named import config_path
from clusterdp.cli.parser import CliParser
from clusterdp.errors import ConfigError
from clusterdp.operate.record.run_state import INTERRUPTED

if TYPE_CHECKING:
    from clusterdp.config import Config
    from clusterdp.rehearse.drills.table import Drill


def add_to(sub: CliParser) -> None:
    sub.add_argument("--only", action="append", default=[], metavar="DRILL", help="this one; may be given again")
    sub.add_argument("--list", action="store_true", help="print the drills")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn: rank, byte, moment")
    sub.add_argument("--thorough", action="store_true", help="kill at every moment of a save, and not at some of them")
    sub.add_argument("--jobs", type=int, metavar="N", help="drills at a time; default: as many as there are cores for")
    about = "slurm: a real one, with the faults that you may cause there; default: a fake one, here"
    sub.add_argument("--cluster", choices=("local", "slurm"), default="local", help=about)
    sub.add_argument("--json", action="store_true", help="print rehearsal.json instead of the table")


def rehearse(options: argparse.Namespace) -> int:
    """Runs the drills, and returns the exit code: 0, or 1 if a drill has failed or lost work. A drill that could not be
    carried out does not count."""
    from clusterdp.rehearse.drills.table import DRILLS

    if options.list:
        width = max(len(drill.name) for drill in DRILLS)
        print("\n".join(f"{drill.name:{width}}  {drill.about}" for drill in DRILLS))
        return 0
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs: {options.jobs} is not a number of drills. Write 1 or more.")
    from clusterdp import config
    from clusterdp.operate.output.formatting import shown_path
    from clusterdp.rehearse.clusters.job_cluster import grace_s
    from clusterdp.rehearse.rehearsal import AGAIN, UNDISTURBED, Rehearsal
    from clusterdp.rehearse.show.outcome import as_json, sentence, write
    from clusterdp.rehearse.show.screen import screen_for
    from clusterdp.submission.plan import make_plan, new_name
    from clusterdp.submission.send.new_folder import make_parent
    from clusterdp.wording import counted

    loaded = config.load(config_path(options.config), options.overrides)
    plan = make_plan(loaded)  # raises the same errors as a submit
    drills = _chosen(options.only, loaded)
    folder = Path(loaded.run_dir or Path("runs", new_name(f"rehearsal-{loaded.name}"))).absolute()
    make_parent(folder, named=bool(loaded.run_dir))
    loaded.run_dir = None
    ranks = plan.spec.ranks_per_node * loaded.resources.least_nodes
    jobs = options.jobs or max(1, (os.cpu_count() or 1) // ranks)
    out = sys.stderr if options.json else sys.stdout
    where = "a fake cluster" if options.cluster == "local" else "the real cluster"
    planned = [(UNDISTURBED, ""), (AGAIN, ""), *((drill.name, drill.about) for drill in drills)]
    print(f"Rehearsing {loaded.name} on {where}, {counted(ranks, 'rank')}: {shown_path(folder)}", file=out)
    began = time.time()
    screen = screen_for(out, planned, jobs)
    made = {"cluster": options.cluster, "seed": options.seed, "jobs": jobs, "thorough": options.thorough}
    rehearsal = Rehearsal(loaded, folder, Path.cwd(), drills, screen, grace_s(loaded), ranks, **made)
    try:
        with screen:
            verdicts = rehearsal.run()
    except KeyboardInterrupt:
        rehearsal.processes.end()
        print(f"\nInterrupted. Nothing of it runs any more; its runs are in {shown_path(folder)}.", file=sys.stderr)
        return INTERRUPTED
    outcome = as_json(rehearsal, began, time.time())
    files = write(folder, outcome)
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        print("\n" + sentence(verdicts), *(shown_path(file) for file in files), sep="\n")
    return 0 if outcome["passed"] else 1


def _chosen(only: list[str], config: Config) -> list[Drill]:
    from clusterdp.rehearse.drills.table import DRILLS, NAMES, drill_of
    from clusterdp.wording import did_you_mean

    for key, names in (("--only", only), ("rehearse.skip", config.rehearse.skip)):
        for name in names:
            if name not in NAMES:
                remedy = did_you_mean(name, NAMES, "`clusterdp rehearse --list` names them.")
                raise ConfigError(f"{key}: {name!r} is not a drill. {remedy}")
    is_elastic = config.resources.is_elastic
    if only:
        chosen = [drill_of(name) for name in NAMES if name in only]
        if sized := next((drill.name for drill in chosen if drill.other_size and not is_elastic), ""):
            raise ConfigError(f"--only: {sized} is for a job with a range of nodes. Write e.g. resources.nodes=1-2.")
        return chosen
    return [
        drill for drill in DRILLS if drill.name not in config.rehearse.skip and (is_elastic or not drill.other_size)
    ]
