"""SweepDir: the folder of a sweep, which contains a run folder for each element.

sweep.json      the values of each element; readers need no other file
job.sbatch      the script of all elements; those beyond Slurm's MaxArraySize have job-1000.sbatch, job-2000.sbatch, ...
code/           the snapshot of the submit directory, for all elements
events/         the arrays that were submitted
0/ 1/ 2/ ...    the run folders; `code` in each is a link to the snapshot
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp.errors import RunError
from clusterdp.plainfile import read_plain, write_durably
from clusterdp.rundir.names import RunDir, names_in

TABLE = "sweep.json"


class SweepDir(NamedTuple):
    path: Path

    @property
    def files(self) -> RunDir:
        """The sweep's folder as a RunDir, for the files that a single run's folder also has: job.sbatch, code/,
        events/, submits/."""
        return RunDir(self.path)

    def element(self, number: int) -> RunDir:
        return RunDir(self.path / str(number))

    def numbers(self) -> list[int]:
        """Returns the numbers of the elements whose folders exist."""
        return sorted(int(name) for name in names_in(self.path) if name.isdecimal())

    def script(self, offset: int) -> Path:
        """Returns the script of the array whose first element is `offset`."""
        return self.path / (f"job-{offset}.sbatch" if offset else "job.sbatch")

    def offsets(self) -> list[int]:
        """Returns the number of the first element of each array."""
        found = (re.fullmatch(r"job(?:-([0-9]{1,9}))?\.sbatch", name) for name in names_in(self.path))
        return sorted(int(match[1] or 0) for match in found if match)

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = ",\n".join(f'  "{number}": {json.dumps(row)}' for number, row in enumerate(rows))
        write_durably(self.path / TABLE, f'{{"name": {json.dumps(name)}, "elements": {{\n{lines}\n}}}}\n', mode=0o600)

    def read_table(self) -> tuple[str, dict[int, dict[str, Any]]]:
        """Returns the name of the sweep, and the values of each element by its number. Raises RunError if sweep.json
        cannot be read."""
        path = self.path / TABLE
        try:
            found = json.loads(read_plain(path))
            rows = {int(number): dict(row) for number, row in found["elements"].items()}
            return str(found["name"]), dict(sorted(rows.items()))
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}. Whoever owns the sweep can read it.") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(f"{path}: is not the table of a sweep. Put back what submit wrote there.") from None


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    return os.path.exists(os.path.join(folder, TABLE))


def sweep_of(run: RunDir) -> SweepDir | None:
    """Returns the sweep that a run folder is an element of; None if the run is not an element."""
    path = run.path.absolute()
    return SweepDir(path.parent) if path.name.isdecimal() and is_sweep(path.parent) else None
