"""All mutants, all correct programs and all programs of others, rehearsed: `make rehearsals`, which takes hours.

    python -m tests.rehearse.rehearsals [NAME ...] [--jobs N]

build/rehearsals/results.json   a row for each drill of each program; a later run replaces those of the same program
build/rehearsals/projects/      the programs and their runs
build/rehearsals/environments/  one for each set of libraries, with the project's own torch
build/rehearsals/checkouts/     the repositories of others
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterdp.rehearse.drills.table import NAMES
from clusterdp.rehearse.judge.verdict import BAD, INAPPLICABLE, PASSED
from tests.rehearse.mutants.table import MUTANTS, NAMED
from tests.rehearse.programs.correct.table import CORRECT, DRILLS
from tests.rehearse.programs.foreign import FOREIGN
from tests.rehearse.rehearsing import HERE, job_of, rehearse

BUILD = HERE.parents[1] / "build/rehearsals"
RESULTS = BUILD / "results.json"
VERSIONS = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
MUTANT, RIGHT, FOREIGN_KIND = "mutant", "correct", "foreign"
_environments, _checkouts = threading.Lock(), threading.Lock()


@dataclass(frozen=True)
class Project:
    """A program, and the drills in which it is rehearsed."""

    kind: str
    name: str
    drills: Sequence[str]
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return BUILD / "projects" / self.name

    def job(self, python: Path) -> dict[str, Any]:
        if self.kind == FOREIGN_KIND:
            job: dict[str, Any] = yaml.safe_load(FOREIGN[self.name].job)
            return job
        ranks, config = _ranks_and_config(self)
        return job_of(f"{self.name}.py", ranks, config, python)

    def make(self, python: Path) -> None:
        """Its folder, with the program in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.kind == FOREIGN_KIND:
            _copy_checkout(self.name, self.folder, python)
        else:
            place = "mutants" if self.kind == MUTANT else "programs/correct"
            shutil.copy(HERE / place / f"{self.name}.py", self.folder)
        # Of a repository that ignores build/, a snapshot would leave the program out.
        subprocess.run(["git", "init", "--quiet", self.folder], check=True)

    def outcome(self, verdict: str, words: str) -> str:
        return MUTANTS[self.name].outcome(verdict, words) if self.kind == MUTANT else verdict


@dataclass(frozen=True)
class Row:
    """One drill of one program. words: of the verdict. outcome: the verdict or, of a mutant, how good it is."""

    kind: str
    program: str
    drill: str
    verdict: str
    words: str
    outcome: str
    versions: str
    took_s: float = 0.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--jobs", type=int, default=1, help="programs at a time")
    chosen = options.parse_args()
    todo = [each for each in projects() if not chosen.names or each.name in chosen.names]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for made in as_completed([pool.submit(rows_of, project) for project in todo]):
            keep(rows := made.result())
            for row in rows:
                print(f"{row.program} {row.drill}: {row.outcome}. {row.verdict}: {row.words}", flush=True)
    rows = kept()
    for kind in (MUTANT, RIGHT):
        counts = Counter(row.outcome for row in rows if row.kind == kind)
        print(f"{kind}:", ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 0 if all(_as_expected(row) for row in rows) else 1


def _as_expected(row: Row) -> bool:
    if row.kind == MUTANT:
        return row.outcome == NAMED or bool(MUTANTS[row.program].missed)
    return row.kind == FOREIGN_KIND or row.outcome in (PASSED, INAPPLICABLE)


def projects() -> list[Project]:
    mutants = [Project(MUTANT, name, [each.drill]) for name, each in MUTANTS.items()]
    right = [Project(RIGHT, name, DRILLS, each.needs) for name, each in CORRECT.items()]
    return [*mutants, *right, *(Project(FOREIGN_KIND, name, NAMES, each.needs) for name, each in FOREIGN.items())]


def rows_of(project: Project) -> list[Row]:
    """One for each of its drills, and for what the undisturbed runs have shown to be bad."""
    python = environment(project.needs)
    versions = _versions(python, ("torch", *project.needs))
    project.make(python)
    try:
        outcome = rehearse(project.folder, project.job(python), project.drills, python)
    except AssertionError as error:
        words = str(error).strip().splitlines()[-1]
        lacking = "no verdict"
        return [Row(project.kind, project.name, drill, lacking, words, lacking, versions) for drill in project.drills]
    rows = []
    for each in outcome["drills"]:
        drill, verdict, words = each["drill"], each["verdict"], each["diagnosis"] or each["said"]
        if drill in project.drills or (verdict in BAD and project.kind != MUTANT):
            judged = project.outcome(verdict, words)
            rows.append(Row(project.kind, project.name, drill, verdict, words, judged, versions, each["took_s"]))
    return rows


def environment(needs: Sequence[str]) -> Path:
    """The Python of an environment with these packages, which sees the project's own packages, torch among them."""
    if not needs:
        return Path(sys.executable)
    folder = BUILD / "environments" / "-".join(need.partition("[")[0] for need in needs)
    python = folder / "bin/python"
    with _environments:
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
            site = _output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
            Path(site, "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
            pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
            subprocess.run([*pip, *needs], check=True)  # type: ignore[list-item]
            (folder / "ready").touch()
    return python


def kept() -> list[Row]:
    """Of the programs that there still are."""
    rows = [Row(**row) for row in json.loads(RESULTS.read_text())] if RESULTS.exists() else []
    names = {(each.kind, each.name) for each in projects()}
    return [row for row in rows if (row.kind, row.program) in names]


def keep(rows: Sequence[Row]) -> None:
    """Replaces those of the same program."""
    others = [row for row in kept() if (row.kind, row.program) != (rows[0].kind, rows[0].program)]
    RESULTS.write_text(json.dumps([asdict(row) for row in (*others, *rows)], indent=1) + "\n")


def _ranks_and_config(project: Project) -> tuple[int, dict[str, Any]]:
    given = MUTANTS[project.name] if project.kind == MUTANT else CORRECT[project.name]
    return given.ranks, given.config


def _copy_checkout(name: str, folder: Path, python: Path) -> None:
    foreign = FOREIGN[name]
    if foreign.repository:
        checkout = BUILD / "checkouts" / foreign.repository
        with _checkouts:
            if not checkout.exists():
                url = f"https://github.com/{foreign.repository}"
                subprocess.run(["git", "clone", "--quiet", "--no-checkout", url, checkout], check=True)
        archive = ["git", "-C", checkout, "archive", f"{foreign.commit}:{foreign.folder}", *foreign.files]
        packed = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        (folder / ".gitignore").unlink(missing_ok=True)  # it may name the data that are made below
    environ = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "PROGRAMS": str(HERE / "programs")}
    subprocess.run(["bash", "-ec", foreign.prepare], cwd=folder, env=environ, check=True)


def _versions(python: Path, packages: Sequence[str]) -> str:
    return _output(python, "-c", VERSIONS, *(name.partition("[")[0] for name in packages))


def _output(*words: str | Path) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
