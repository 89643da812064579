"""`clusterdp list`: selects runs, and prints their table or their JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from clusterdp.errors import ConfigError, SlurmError
from clusterdp.operate.account.run_account import hours
from clusterdp.operate.find.find_run import RUNS, is_run
from clusterdp.operate.find.run_index import NotedRun, noted_runs
from clusterdp.operate.listing.columns import table
from clusterdp.operate.listing.filters import Filters
from clusterdp.operate.listing.look import RunLook, Summaries, keep, look_at, summaries_path, summary_of
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.output.terminal import width_of
from clusterdp.operate.queue.run_cluster import commands_of, is_gone, is_here
from clusterdp.operate.queue.run_status import NO_CLUSTER, RunStatus, status_by
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import modified
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import is_job_id
from clusterdp.wording import counted, some_of

ROWS = 20  # runs that a terminal shows without -n
MANY = 1000  # reading more folders than this takes over a second
PLAIN = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)  # a name without quotes that is not a job id or an option
TIMEOUT_S = 20.0  # limit of squeue's answer for each cluster; Slurm's own timeout is 10 s
Rows = dict[str, commands.SqueueRow]
# The state of a whole sweep is the first state in this list that any element has.
OF_A_SWEEP = [RunState.RUNNING, RunState.WAITING, RunState.FAILED, RunState.GAVE_UP, RunState.VANISHED]
PATIENCE_S = 5.0
TICK_S = 0.1
# Python runs one thread at a time, and each switch costs time: one thread is the fastest, unless that thread waits. A
# thread that reads fewer folders than this in a tick probably waits for a network, so more threads are started.
FEW = 50
MORE_THREADS = 7  # number of additional threads for each file system
Found = TypeVar("Found")


@dataclass(frozen=True)
class Wanted:
    """The options of `clusterdp list`."""

    filters: Filters = field(default_factory=Filters)
    everywhere: bool = False  # True: show also the runs of other folders
    limit: int | None = None  # number of runs to show; 0: all; None: ROWS on a terminal, else all
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"-n {self.limit}: is not a number of runs. Write 1 or more, or 0 for all.")

    def rows(self, out: TextIO) -> int:
        """Returns how many runs are shown at most; 0 means all runs."""
        if self.limit is not None:
            return self.limit
        return ROWS if out.isatty() and not self.as_json else 0


def list_runs(wanted: Wanted, out: TextIO, err: TextIO, now: float | None = None) -> None:
    """Prints the list of runs, and on `err` a line for each reason why a state is unknown."""
    reading = Reading(wanted, time.time() if now is None else now, err)
    try:
        reading.read(wanted.rows(out))
    finally:  # even after Ctrl-C, so that the next `list` need not read these folders again
        reading.kept.save()
    print_list(reading, out, err)


def print_list(reading: Reading, out: TextIO, err: TextIO) -> None:
    wanted = reading.wanted
    for complaint in reading.complaints:
        err.write(f"clusterdp: {complaint}\n")
    err.flush()
    if wanted.as_json:
        out.write("[\n" + ",\n".join(reading.found) + "\n]\n" if reading.found else "[]\n")
        return
    if not reading.found:
        out.write(_none(wanted) + "\n")
        return
    colour = Colour(out)
    runs = json.loads(f"[{','.join(reading.found)}]")
    lines = table(runs, [reading.typed(run["run"]) for run in runs], reading.now, width_of(out), colour)
    if reading.more:
        lines.append(colour("dim", f"{reading.more} more; -n 0 lists all"))
    if wanted.everywhere and (words := _hours_of(runs)):
        lines.append(colour("dim", f"{words}: `clusterdp goodput --all` shows where"))
    out.write("\n".join(lines) + "\n")


def _hours_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the hours of all these runs: `69.3 GPU-hours, 1.2 lost`; empty if none is known."""
    words = []
    for unit in ("GPU-hours", "core-hours"):
        rows = [run for run in runs if run["unit"] == unit]
        whole, lost = (sum(row[key] for row in rows) for key in ("hours", "hours_lost"))
        words += [f"{hours(whole)} {unit}, {hours(lost)} lost"] if whole else []
    return "; ".join(words)


class Reading:
    """Reads run folders for the list. `found` has the summaries of the wanted runs, the newest first. Each summary
    stays JSON text, because parsing ten thousand summaries takes long. `more` is the number of runs that are not in
    `found`."""

    def __init__(self, wanted: Wanted, now: float, err: TextIO):
        self.wanted = wanted
        self.now = now
        self.err = err
        self.kept = Summaries(summaries_path())
        self.typed = TypedName()
        self.found: list[str] = []
        self.more = 0
        self.complaints: list[str] = []
        self.silent: list[str] = []
        self.unread: list[str] = []

    def read(self, limit: int) -> None:
        """Reads run folders until `limit` runs are found; a limit of 0 reads all folders."""
        filters = self.wanted.filters
        paths = [run.path for run in find_all(self.wanted.everywhere) if run.time >= filters.since]
        looks: dict[str, RunLook] = {}
        while paths and (not limit or len(looks) < limit or filters.look_inside):
            few = limit and not filters.look_inside and not self.silent  # after a timeout, read all folders at once
            count = limit - len(looks) if few else len(paths)
            looks.update(self._look(paths[:count]))  # some of the folders may be gone: the next turn reads more
            paths = paths[count:]
        found = [summary for summary in self._summaries(looks) if filters.take(summary, self.typed)]
        self.found = found[: limit or None]
        there, _ = read_in_time(paths, os.path.isdir, PATIENCE_S / 10)
        self.more = len(found) - len(self.found) + sum(there.get(path, True) for path in paths)
        if self.silent:
            said = f"left out because they did not answer within {PATIENCE_S:.0f} s: {some_of(self.silent, 2)}."
            self.complaints.append(said)
        if self.unread:
            self.complaints.append(f"left out: {some_of(self.unread, 2)}.")

    def _look(self, paths: Sequence[str]) -> dict[str, RunLook]:
        """Returns a RunLook for each path that is a run."""
        if len(paths) > MANY and self.err.isatty():
            new = sum(path not in self.kept for path in paths)
            if new > MANY:
                self.err.write(f"clusterdp: reading {new:,} run folders for the first time, a few ms each\n")
                self.err.flush()
        looks, silent = read_in_time(paths, lambda path: look_at(path, self.kept, self.now))
        self.silent += silent
        for path, look in looks.items():
            parts = [(f"{path}/{number}", each) for number, each in (look.elements or {}).items()]
            self.unread += [f"{where}: {each.unread}" for where, each in [(path, look), *parts] if each.unread]
        return {path: looks[path] for path in paths if path in looks and (looks[path].text or looks[path].history)}

    def _summaries(self, looks: Mapping[str, RunLook]) -> list[str]:
        """Returns the summaries as JSON. A single squeue asks about all runs that may not be over."""
        live = [history for look in looks.values() for history in look.open]
        statuses, complaints = ask_squeue(live)
        self.complaints += [f"{complaint} A ? marks what was last recorded." for complaint in complaints]
        answers = {str(history.run.path): answer for history, answer in zip(live, statuses, strict=True)}
        return [row_of(look, answers, self.kept, self.now) for look in looks.values()]


def _none(wanted: Wanted) -> str:
    if wanted.filters != Filters():
        return "No run is meant by these words."
    return "No runs yet." if wanted.everywhere else "No runs of this folder; `clusterdp list --all` has all."


def find_all(everywhere: bool) -> list[NotedRun]:
    """Returns the runs of the current folder, or all runs with `everywhere`, the last submitted first. The runs come
    from the index, whose runs may be gone, and from `runs/`."""
    here = os.getcwd()
    noted = list(noted_runs())
    found = [run for run in noted if everywhere or run.is_of(here)]
    known = {run.path for run in noted}
    for path in set(_folders()) - known:
        run = RunDir(Path(path))
        if is_run(run.path) or not os.access(path, os.X_OK):  # keeps an unreadable folder: look_at() reports it
            found.append(NotedRun(path, modified(run.config) or modified(run.path) or 0.0, here))
    paths = {run.path for run in found}
    return sorted((run for run in found if not _is_element(run.path, paths)), key=lambda run: run.time, reverse=True)


def _is_element(path: str, paths: Set[str]) -> bool:
    """Returns whether the path is an element of a sweep, judged by names alone. The index contains an element that was
    resumed by itself, but the sweep's row already shows this element."""
    parent, _, name = path.rpartition("/")
    return name.isdecimal() and parent in paths


def _folders() -> list[str]:
    try:
        return [entry.path for entry in os.scandir(RUNS.absolute()) if entry.is_dir()]
    except OSError:  # the current folder has no runs/
        return []


class TypedName:
    """Returns the word that the user types for a run: a name if the run is in `runs/`, else a path."""

    def __init__(self) -> None:
        self.here = os.getcwd().rstrip("/") + "/"
        self.runs = f"{self.here}{RUNS}/"
        self.beside = set(os.listdir("."))

    def __call__(self, path: str) -> str:
        """Returns the same as shown_path(), but creates no Path, because ten thousand Paths would take long."""
        name = path[len(self.runs) :] if path.startswith(self.runs) else ""
        if PLAIN.fullmatch(name) and name not in self.beside:
            return name
        first = name.partition("/")[0]
        # Not a name that find_run() takes for something else: a folder of the current directory, an option or a job id.
        if name and first not in self.beside and not first.startswith(("-", "~")) and not is_job_id(name):
            return shlex.quote(name)
        return shlex.quote(path[len(self.here) :] if path.startswith(self.here) else path)


def ask_squeue(histories: Sequence[RunHistory]) -> tuple[list[tuple[RunStatus, bool]], list[str]]:
    """Returns each run's status, with True if squeue could not confirm the status, and messages with the reasons."""
    clusters: dict[str, set[str]] = {}
    for history in histories:
        clusters.setdefault(history.cluster, set()).update([history.job] if history.job else [])
    answers = {cluster: _ask(cluster, sorted(jobs)) for cluster, jobs in clusters.items()}
    found: list[tuple[RunStatus, bool]] = []
    errors, alone = [], 0
    for history in histories:
        rows = answers[history.cluster]
        if history.job is None and not history.unread:  # the run has no job: squeue has nothing to say
            rows = {}
        elif history.unread:  # an unreadable record may name further jobs
            what = f"{shown_path(history.run.path)}/{history.unread}"
            rows = SlurmError(f"{what}. So it is not known which jobs there are. Make it readable first.")
        as_recorded = not history.state.over and (rows is None or isinstance(rows, SlurmError))
        found.append((status_by(history, rows), as_recorded))
        if as_recorded and isinstance(rows, SlurmError):
            errors.append(str(rows))
        if as_recorded and rows is None:
            alone += bool(history.submitted)
            errors += [] if history.submitted else [f"{shown_path(history.run.path)}: {NO_CLUSTER}."]
    complaints = list(dict.fromkeys(errors))
    if alone:
        complaints.append(f"there is no squeue here that knows the cluster of {counted(alone, 'run')}.")
    return found, complaints


def _ask(cluster: str, jobs: Sequence[str]) -> Rows | SlurmError | None:
    """Returns squeue's rows of the jobs, as run_status.ask_squeue() does for one run. A SlurmError is returned, not
    raised."""
    if not jobs or is_gone(cluster):
        return {}
    with commands_of(cluster):
        if not is_here(cluster):
            return None
        try:
            if not any("_" in job for job in jobs):
                return commands.job_states(jobs, TIMEOUT_S)
            arrays = dict.fromkeys(job.partition("_")[0] for job in jobs)  # one id stands for all elements
            return commands.element_states(list(arrays), TIMEOUT_S)
        except SlurmError as error:
            return error


OF_A_SWEEP += [RunState.STOPPED, RunState.CANCELLED]

Answers = Mapping[str, tuple[RunStatus, bool]]


def row_of(look: RunLook, answers: Answers, kept: Summaries, now: float) -> str:
    """Returns the summary as JSON. `answers` maps each run folder to the run's status, and to True if squeue could not
    confirm the status."""
    if look.elements is not None:
        return _row_of_sweep(look, answers, kept, now)
    if look.history is None:
        return look.text
    status, as_recorded = answers[str(look.history.run.path)]
    return keep(look, status, kept, now, as_recorded=as_recorded)


def _row_of_sweep(sweep: RunLook, answers: Answers, kept: Summaries, now: float) -> str:
    """Returns the summary of a sweep. The sweep's state is the first of OF_A_SWEEP that any element has; `why` has the
    number of elements in each state."""
    assert sweep.history is not None and sweep.elements is not None
    looks = [each for each in sweep.elements.values() if each.text or each.history]
    rows = [json.loads(row_of(each, answers, kept, now)) for each in looks]
    states = Counter(row["state"] for row in rows)
    counts = {each.value: states[each.value] for each in RunState if states[each.value]}
    state = next((each for each in OF_A_SWEEP if states[each.value]), RunState.DONE)
    said = ", ".join(f"{count} {word}" for word, count in counts.items())
    as_recorded = any(row["as_recorded"] for row in rows)
    found = summary_of(sweep.history, RunStatus(state, said), now, as_recorded=as_recorded)
    unit = next((row["unit"] for row in rows if row["unit"]), None)
    found["unit"] = unit
    for key in ("hours", "hours_lost"):
        found[key] = sum(row[key] or 0.0 for row in rows) if unit else None
    return json.dumps({**found, "elements": counts}, separators=(",", ":"))


def read_in_time(
    paths: Sequence[str], read: Callable[[str], Found], patience_s: float = PATIENCE_S
) -> tuple[dict[str, Found], list[str]]:
    """Returns a dictionary from each path to the result of read(), and a list of the paths without a result. The wait
    ends when no result has come for `patience_s`. Daemon threads call read(); the caller gets read()'s exceptions."""
    found: dict[str, Found] = {}
    errors: list[BaseException] = []
    done = threading.Semaphore(0)

    def work(lane: Iterator[str]) -> None:
        try:
            for path in lane:
                found[path] = read(path)
        except BaseException as error:
            errors.append(error)
        done.release()

    def start(lane: Iterator[str]) -> None:
        threading.Thread(target=work, args=(lane,), daemon=True).start()

    lanes = [iter(lane) for lane in _by_file_system(paths)]
    for lane in lanes:
        start(lane)
    running, quiet_s, more = len(lanes), 0.0, MORE_THREADS
    while running and quiet_s < patience_s:
        before = len(found)
        if done.acquire(timeout=TICK_S):
            running, quiet_s = running - 1, 0.0
            continue
        quiet_s = quiet_s + TICK_S if len(found) == before else 0.0
        if len(found) - before < FEW:
            for lane in lanes * more:
                start(lane)
            running, more = running + len(lanes) * more, 0
    if errors:
        raise errors[0]
    read_so_far = dict(found)
    return read_so_far, [path for path in paths if path not in read_so_far]


def _by_file_system(paths: Sequence[str]) -> list[list[str]]:
    """Returns the paths grouped by mount point. Only names are compared, because any call to a file system could
    hang."""
    mounts = sorted(_mount_points(), key=len, reverse=True)
    lanes: dict[str, list[str]] = {}
    of_parent: dict[str, str] = {}
    for path in paths:
        parent = os.path.dirname(path)
        if parent not in of_parent:
            of_parent[parent] = next((m for m in mounts if f"{path}/".startswith(m.rstrip("/") + "/")), "")
        lanes.setdefault(of_parent[parent], []).append(path)
    return list(lanes.values())


def _mount_points() -> list[str]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(" ")[4] for line in file]
    except (OSError, IndexError):  # not Linux
        return []
    return [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field) for field in fields]
