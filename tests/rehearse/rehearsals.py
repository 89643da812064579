"""All mutants and all correct programs, rehearsed: `make rehearsals`, which takes hours.

    python -m tests.rehearse.rehearsals [NAME ...] [--jobs N]

build/rehearsals/results.json   a row for each drill of each program; a later run replaces those of the same program
build/rehearsals/projects/      the programs and their runs
build/rehearsals/environments/  one for each set of libraries, with the project's own torch
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from clusterdp.rehearse.judge.verdict import BAD, INAPPLICABLE, PASSED
from tests.rehearse.mutants.table import MUTANTS, NAMED
from tests.rehearse.programs.correct.table import CORRECT, DRILLS
from tests.rehearse.rehearsing import HERE, job_of, rehearse

BUILD = HERE.parents[1] / "build/rehearsals"
RESULTS = BUILD / "results.json"
VERSIONS = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
_environments = threading.Lock()
_results = threading.Lock()


@dataclass(frozen=True)
class Row:
    """One drill of one program. words: of the verdict. outcome: `right`, or how it is wrong."""

    kind: str
    program: str
    drill: str
    verdict: str
    words: str
    outcome: str
    versions: str
    took_s: float


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--jobs", type=int, default=1)
    chosen = options.parse_args()
    works = [*map(partial(partial, rehearse_mutant), MUTANTS), *map(partial(partial, rehearse_correct), CORRECT)]
    if chosen.names:
        works = [work for work in works if work.args[0] in chosen.names]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for rows in pool.map(lambda work: work(), works):
            keep(rows)
            for row in rows:
                print(f"{row.program} {row.drill}: {row.outcome}. {row.verdict}: {row.words}", flush=True)
    rows = kept()
    for kind in ("mutant", "correct"):
        counts = Counter(row.outcome for row in rows if row.kind == kind)
        print(f"{kind}:", ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 0 if all(row.outcome in (NAMED, PASSED, INAPPLICABLE) for row in rows) else 1


def rehearse_mutant(name: str) -> list[Row]:
    mutant = MUTANTS[name]
    job = job_of(f"{name}.py", mutant.ranks, mutant.config)
    rows = _rehearse("mutant", name, job, HERE / f"mutants/{name}.py", [mutant.drill], ())
    found = next(row for row in rows if row.drill == mutant.drill)
    return [replace(found, outcome=mutant.outcome(found.verdict, found.words))]


def rehearse_correct(name: str) -> list[Row]:
    program = CORRECT[name]
    python = environment(program.needs)
    job = job_of(f"{name}.py", program.ranks, program.config, str(python))
    return _rehearse("correct", name, job, HERE / f"programs/correct/{name}.py", DRILLS, program.needs)


def _rehearse(
    kind: str, name: str, job: dict[str, Any], file: Path, drills: Sequence[str], needs: Sequence[str]
) -> list[Row]:
    folder = BUILD / "projects" / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "init", "--quiet", folder], check=True)  # else a snapshot leaves it out: build/ is ignored
    versions = _versions(("torch", *needs))
    began = time.time()
    try:
        outcome = rehearse(folder, job, drills, [file])
    except AssertionError as error:  # no verdict at all
        words = str(error).strip().splitlines()[-1]
        return [Row(kind, name, drill, "none", words, "crashed", versions, time.time() - began) for drill in drills]
    rows = [each for each in outcome["drills"] if each["drill"] in drills or each["verdict"] in BAD]
    return [
        Row(
            kind,
            name,
            each["drill"],
            each["verdict"],
            each["diagnosis"] or each["said"],
            each["verdict"],
            versions,
            each["took_s"],
        )
        for each in rows
    ]


def environment(needs: Sequence[str]) -> Path:
    """The Python of an environment with these packages, which sees the project's own packages, torch among them."""
    if not needs:
        return Path(sys.executable)
    folder = BUILD / "environments" / "-".join(need.partition("[")[0] for need in needs)
    python = folder / "bin/python"
    with _environments:
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
            words = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
            site = Path(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
            (site / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
            pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
            subprocess.run([*pip, *needs], check=True)
            (folder / "ready").touch()
    return python


def _versions(packages: Sequence[str]) -> str:
    names = [name.partition("[")[0] for name in packages]
    words = [str(environment(packages[1:])), "-c", VERSIONS, *names]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def kept() -> list[Row]:
    return [Row(**row) for row in json.loads(RESULTS.read_text())] if RESULTS.exists() else []


def keep(rows: Sequence[Row]) -> None:
    """Replaces those of the same program."""
    with _results:
        others = [row for row in kept() if (row.kind, row.program) != (rows[0].kind, rows[0].program)]
        BUILD.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps([asdict(row) for row in (*others, *rows)], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
