"""The calls that submit a new run, on the cluster: whether one has begun, and how it has ended. The user's machine
gives each a token before it connects, and asks again after a cut: there is never a second job, nor an unknown one.

    .clusterdp/calls/TOKEN      created exclusively: by the call right before it submits, or by whoever asks for a call
                                that has not begun, which then cannot begin any more
    .clusterdp/calls/TOKEN.end  exit code and output, when the call has ended

A cut connection does not end a call. One that was killed is settled by what Slurm knows of its run folder, after
MessageTimeout: an sbatch without an answer may take so long."""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp import procfs
from clusterdp.errors import RemoteError, RunError, SlurmError
from clusterdp.plainfile import read_plain, write_durably
from clusterdp.remote.received_project import prepare
from clusterdp.rundir import Ledger, RunDir, append_line, read_events
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import home_of
from clusterdp.submission.send.answers import known_jobs
from clusterdp.submission.send.new_folder import empty
from clusterdp.submission.snapshot.sent_project import PRIVATE

MESSAGE_TIMEOUT_S = 10.0  # Slurm's default
KEPT_S = 30 * 86400.0  # how long the record of a call is kept
EVERY_S = 0.1  # looks at a call that still runs, perhaps on another login node


class Outcome(NamedTuple):
    """How a call has ended. `state`: ended; none, if it submits nothing any more; or unknown."""

    state: str
    code: int
    said: str  # what it printed, or a sentence about it


def begin(folder: Path, token: str, run: str) -> None:
    """Records that the call now submits `run`. Raises RemoteError if somebody has asked for it before."""
    calls = _folder(folder)
    for old in calls.iterdir():
        with suppress(OSError):
            if old.stat().st_mtime < time.time() - KEPT_S:
                old.unlink()
    about = {"run": run, "time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    if not _create(calls / token, about):
        raise RemoteError("this call came too late: a later one has taken its place. Nothing was submitted.")


def end(folder: Path, token: str, code: int, said: str) -> None:
    write_durably(_folder(folder) / f"{token}.end", json.dumps({"code": code, "said": said}), mode=0o600)


def settle(folder: Path, token: str) -> Outcome:
    """Returns the outcome of a call whose connection was cut. Waits a while for one that still runs."""
    calls = _folder(folder)
    if _create(calls / token, {"void": True}) or (call := _read(calls / token)).get("void"):
        return Outcome("none", 0, "it had not begun there, and nothing was submitted")
    begun, timeout_s = time.monotonic(), _message_timeout_s()
    while True:
        runs = _runs(call)
        if ended := _read(calls / f"{token}.end"):
            return Outcome("ended", int(ended["code"]), str(ended["said"]))
        if runs is False or time.monotonic() > begun + (commands.ANSWER_TIMEOUT_S if runs else timeout_s):
            break
        time.sleep(EVERY_S)
    return (
        Outcome("unknown", RemoteError.exit_code, "it still runs there") if runs else _look(folder, token, call, runs)
    )


def _message_timeout_s() -> float:
    """Returns how long an sbatch may wait for the answer of the controller."""
    with suppress(SlurmError, LookupError, ValueError):
        return float(commands.show_config(timeout_s=20.0)["MessageTimeout"].split()[0])  # such as `10 sec`
    return MESSAGE_TIMEOUT_S


def _runs(call: Mapping[str, Any]) -> bool | None:
    """Returns whether the process of a call runs; None on another login node, where that cannot be seen."""
    return procfs.is_alive(int(call["pid"])) if call["host"] == socket.gethostname() else None


def _look(folder: Path, token: str, call: Mapping[str, Any], runs: bool | None) -> Outcome:
    """Returns the outcome of a call that was killed, or that runs on another login node, by its run folder."""
    run, unknown = RunDir(folder / Path(call["run"]).expanduser()), "it is unknown whether Slurm has its job"
    jobs = known_jobs(run)
    if not jobs and (runs is None or run.script.exists()):
        sent = run.script.stat().st_mtime if run.script.exists() else 0.0
        sure = max(float(call["time"]), sent) + _message_timeout_s() + 1
        if time.time() < sure:
            until = time.strftime("%H:%M:%S", time.localtime(sure))
            return Outcome("unknown", RemoteError.exit_code, f"{unknown}, until {until}")
        try:
            jobs = {*commands.jobs_of_scripts_in(run.path)}
        except SlurmError as error:
            return Outcome("unknown", RemoteError.exit_code, f"{unknown}: {error}")
    if jobs:
        outcome = Outcome("ended", 0, _write_down(folder, run, jobs))
    else:
        with suppress(OSError, RunError):  # what is left of it has no job
            empty(run)
            run.path.rmdir()
        outcome = Outcome("ended", RemoteError.exit_code, "it was ended there before it submitted anything")
    end(folder, token, outcome.code, outcome.said)
    return outcome


def _write_down(folder: Path, run: RunDir, jobs: Collection[str]) -> str:
    """Records jobs that nobody has recorded, and returns what submit says about them."""
    from clusterdp.operate.find.run_index import remember

    about = {"name": run.path.name, "dir": str(folder), "folder": str(run.path), "cluster": home_of("")}
    for job in {*jobs} - {event.get("job") for event in read_events(run) if event.get("event") == "submitted"}:
        Ledger(run, f"submit-{job}", "submit").write("submitted", job=job, **about)
    remember(run, sorted(jobs))
    path = shlex.quote(str(run.path))
    return f"Submitted job {', '.join(sorted(jobs))}: {run.path}\nFollow it: clusterdp watch {path}\n"


def _folder(folder: Path) -> Path:
    prepare(folder)
    (folder / PRIVATE / "calls").mkdir(exist_ok=True, mode=0o700)
    return folder / PRIVATE / "calls"


def _create(path: Path, record: dict[str, Any]) -> bool:
    """Creates the file, whole: a reader finds no half of it. Returns whether this process has created it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    append_line(new, record, mode=0o600)
    try:
        os.link(new, path)  # as exclusive as O_EXCL, also on NFS
        return True
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(read_plain(path))
        return found
    return {}
