"""`clusterdp shell`, `exec` and `stacks`: programs beside the ranks of a job that runs, by `srun --overlap`.

The program on the node (batch/beside.py) is in the run folder, as the batch program is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.logs.choice import Ranks
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import ask_squeue
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.rundir import RunDir
from clusterdp.slurm import commands
from clusterdp.slurm.hostlist import expand
from clusterdp.wording import ranges, some_of

START = "import sys; sys.path.insert(0, sys.argv[1]); from batch.beside import main; main(sys.argv[2:])"


@dataclass(frozen=True)
class RunningJob:
    """The job of a run, which has its nodes."""

    history: RunHistory
    job: str
    nodes: Sequence[str]

    def words(self, verb: str, *rest: str) -> list[str]:
        """Returns the words of the program on a node."""
        run = self.history.run
        batch = run.path / "batch" if (run.path / "batch").is_dir() else run.path.parent / "batch"  # of a sweep
        return [_python(run), "-I", "-S", "-B", "-c", START, str(batch), verb, str(run.path.absolute()), *rest]

    def ranks(self, verb: str = "ranks") -> list[dict[str, Any]]:
        """Returns the ranks that run, in order. Raises SlurmError if the site allows no step beside them."""
        said = commands.beside(self.job, self.words(verb), self.nodes)
        found = [json.loads(line) for line in said.splitlines() if line.startswith('{"')]
        return sorted(found, key=lambda row: row["rank"])

    def rank(self, number: int) -> dict[str, Any]:
        found = self.ranks()
        row = next((row for row in found if row["rank"] == number), None)
        if row is None:
            there = ", ".join(ranges([each["rank"] for each in found])) or "none"
            raise RunError(f"--rank {number}: does not run now. Of job {self.job}, these do: {there}.")
        return row


def running_job(run: RunDir) -> RunningJob:
    """Returns the job of a run. Raises RunError if it has no nodes now."""
    history = read_history(run)
    refuse_copy(history)
    rows = ask_squeue(history)
    path = shown_path(run.path)
    if rows is None:
        raise RunError(f"{path}: there is no squeue here that knows its cluster. Run this where it was submitted.")
    row = rows.get(history.job or "")
    if history.job is None or row is None or row.state != "RUNNING":
        state = row.state.lower() if row else history.state.value
        raise RunError(f"{path}: does not run now ({state}), so there is no rank. `clusterdp status {path}` has more.")
    return RunningJob(history, history.job, expand(row.nodes))


def run_beside(run: RunDir, words: Sequence[str], rank: int | None, everywhere: bool, terminal: bool) -> int:
    """Runs a program with the environment and in the folder of a rank, or of the first rank of each node. Returns its
    exit code."""
    job = running_job(run)
    if not everywhere:
        row = job.rank(rank or 0)
        options = ["--pty"] if terminal else ["--input=all"]
        return _attached(commands.beside_words(job.job, [row["node"]], *options), job, row["rank"], words)
    firsts = {row["node"]: row for row in reversed(job.ranks())}
    if not firsts:
        raise RunError(f"--all: no rank of job {job.job} runs now. Try again when it trains.")
    codes = [
        _attached(commands.beside_words(job.job, [node], "--input=none"), job, row["rank"], words, node)
        for node, row in sorted(firsts.items(), key=lambda each: int(each[1]["rank"]))
    ]
    return max(codes)


def _attached(srun: list[str], job: RunningJob, rank: int, words: Sequence[str], node: str = "") -> int:
    if node:
        print(f"{node}:", flush=True)
    try:
        return subprocess.call([*srun, *job.words("exec", str(rank), *words)])
    except OSError as error:
        raise SlurmError(f"srun: cannot be run: {error.strerror}. Run this on a login node of the cluster.") from None


def show_stacks(run: RunDir, chosen: Ranks | None, out: TextIO) -> int:
    """Prints the stacks of ranks, each with its node and process. Returns 1 if a rank does not answer."""
    job = running_job(run)
    rows = [row for row in job.ranks("stacks") if chosen is None or row["rank"] in chosen]
    if chosen is not None and (missing := chosen.without(row["rank"] for row in rows)):
        raise RunError(f"--rank {','.join(missing)}: does not run now. `clusterdp status` has the state of the run.")
    colour = Colour(out)
    for row in rows:
        head = colour("bold", f"rank {row['rank']}") + f" on {row['node']}, process {row['pid']}"
        out.write(f"{head}\n{row['stack'].rstrip() or '  (no answer)'}\n\n")
    if silent := [str(row["rank"]) for row in rows if not row["stack"]]:
        why = "only entry: jobs have stacks" if not job.history.entry else "they are stopped, or still load torch"
        print(f"clusterdp: rank {some_of(silent)}: no stacks: {why}.", file=sys.stderr)
    return 1 if not rows or silent else 0


def _python(run: RunDir) -> str:
    """Returns the interpreter of the batch program, which is on each node of a job with keepers."""
    from clusterdp.config import read_resolved

    try:
        launch = read_resolved(run.config).get("launch") or {}
    except OSError:
        return sys.executable
    return str(launch.get("host_python") or launch.get("python") or sys.executable)
