"""scancel: ends or signals jobs, elements and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import error_texts
from ...core.error_texts import Refusal
from ...core.job_ids import SelectedStep, find, parse, split_list
from ...core.model import JobRecord
from ...core.orders import Signal
from ...slurmctld import job_end
from ..options.getopt import GetoptParser, table
from ..options.parsed_options import signal_number
from ..options.read_words import read_words

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    account,A= batch,b ctld full,f help hurry,H interactive,i cluster:clusters,M= clusters,M= name,n= jobname:name,n=
    me nodelist,w= partition,p= qos,q= quiet,Q reservation,R= sibling= signal,s= state,t= usage user,u= verbose,v
    version,V wckey=
""")
KILL = 9
FILTERS = ("name", "partition", "state", "user", "account", "qos", "me", "nodelist")


async def run(client: Connection, daemon: Daemon) -> int:
    usage = "Usage: scancel [OPTIONS] [job_id[_array_id][.step_id]]"
    pairs, words = read_words(client, daemon, GetoptParser("scancel", OPTIONS), usage)
    options = {"name" if option == "jobname" else option: value for option, value in pairs}
    if client.environ.get("SCANCEL_VERBOSE", "true").lower()[:1] not in ("t", "f"):
        raise Refusal(f"scancel: error: Unrecognized SCANCEL_VERBOSE value: {client.environ['SCANCEL_VERBOSE']}")
    for option in ("interactive", "reservation", "sibling", "wckey"):
        if option in options:
            raise Refusal(f"scancel: error: --{option} is not supported by this fake cluster")
    for variable, option in (("SCANCEL_NAME", "name"), ("SCANCEL_PARTITION", "partition"), ("SCANCEL_STATE", "state")):
        if variable in client.environ:
            options.setdefault(option, client.environ[variable])
    number = _signal(options)
    if any(not word.strip() for word in words):
        raise Refusal("scancel: error: Invalid job id ")
    names = [_name(text) for word in words for text in split_list(word)]
    filters = any(option in options for option in FILTERS)
    if not names and not filters:
        raise Refusal("scancel: error: No job identification provided")
    if "user" in options and not _is_user(options["user"]):
        raise Refusal(f"scancel: error: Invalid user name: {options['user']}")
    code = 0
    for name in names:
        code = max(code, _one(client, daemon, options, name, number))
    if not names:
        for job in [job for job in daemon.model.live_jobs() if _meant(daemon, options, job)]:
            _end(daemon, options, job, None, number)
    return code


def _is_user(text: str) -> bool:
    import pwd

    try:
        return bool(text.isdigit() or pwd.getpwnam(text))
    except KeyError:
        return False


def _signal(options: dict[str, str]) -> int | None:
    """Returns the number of the signal that --signal names, or None without --signal (scancel then ends the job)."""
    if "signal" not in options:
        return None
    number = signal_number(options["signal"])
    if not number or options["signal"].upper().removeprefix("SIG") in ("RTMIN", "RTMAX"):
        raise Refusal(f"Unknown job signal: {options['signal']}")
    return number


def _name(text: str) -> SelectedStep:
    name = parse(text)
    if not name or not (name.step or "0").isdigit():
        raise Refusal(f"scancel: error: Invalid job id {text}")
    return name


def _one(client: Connection, daemon: Daemon, options: dict[str, str], name: SelectedStep, number: int | None) -> int:
    jobs = [job for job in find(daemon.model, name) if _meant(daemon, options, job)]
    live = [job for job in jobs if not job.over]
    if code := _refusal(client, options, name, number, jobs):
        return code
    for job in live:
        if name.indexes is not None and job.array and not job.array.split:
            for index in [index for index in name.indexes if index in job.array.indexes]:
                _drop_element(daemon, job, index)
            continue
        _end(daemon, options, job, name.step, number)
    return 0


def _refusal(
    client: Connection, options: dict[str, str], name: SelectedStep, number: int | None, jobs: list[JobRecord]
) -> int:
    """Prints why a job or step cannot be ended or signalled, and returns the exit code. Returns 0 if nothing prevents
    the end or signal."""
    live = [job for job in jobs if not job.over]
    shown = f"{name.job}" + ("" if name.step is None else f".{name.step}")
    if "verbose" in options:
        what = "step" if name.step is not None else "full job" if "full" in options else "job"
        client.error(f"scancel: {f'Signal {number} to' if number else 'Terminating'} {what} {shown}")
    gone = name.step is not None and not any(step.live for job in live for step in job.steps if step.id == name.step)
    if gone and number is None and (jobs or live):
        part = name.job if live else shown
        client.error(f"scancel: error: Kill job error on job step id {part}: {error_texts.INVALID_JOB_ID}")
        return 225 if live else 1
    if "verbose" in options and jobs and not live and number is None:
        client.error(f"scancel: error: Kill job error on job id {name.job}: {error_texts.ALREADY_DONE}")
    if any(job.het and job.waits and (name.offset or job.het.leader != name.job) for job in live):
        text = name.job if name.offset is None else f"{name.job}+{name.offset}"
        client.error(f"scancel: error: Kill job error on job id {text}: {error_texts.ONE_COMPONENT}")
        return 60
    if not live and number not in (None, KILL):
        client.error(f"scancel: error: Kill job error on job id {name.job}: {error_texts.INVALID_JOB_ID}")
        return 1
    return 0


def _drop_element(daemon: Daemon, job: JobRecord, index: int) -> None:
    """Cancels a waiting element of an array. The element disappears without a record, unless it is the array's last
    element. When the first element of a held array is cancelled, the array is entered into accounting.
    """
    array = job.array
    assert array
    if len(array.indexes) == 1:
        array.emptied = array.count > 1
        job_end.cancel(daemon.controller, job)
        return
    array.indexes.remove(index)
    if job.held and not array.accounted_as and not daemon.shape.settings.release.accounts_held_jobs:
        job.accounted, array.accounted_as, array.accounted_at = True, job.name_of_id, daemon.controller.clock()
    daemon.controller.changed(job)


def _end(daemon: Daemon, options: dict[str, str], job: JobRecord, step_id: str | None, number: int | None) -> None:
    controller = daemon.controller
    if step_id is not None:
        step = job.step(step_id)
        if not step or not step.live:
            return
        if number in (None, KILL):
            job_end.cancel_step(controller, job, step, by_name=number == KILL)
        else:
            controller.runner.order(job, step, Signal(number))
        return
    if "batch" in options:
        controller.signal(job, number or KILL, script=True)
    elif number in (None, KILL):
        job_end.cancel(controller, job)
    else:
        controller.signal(job, number, full="full" in options)


def _meant(daemon: Daemon, options: dict[str, str], job: JobRecord) -> bool:
    if "name" in options and job.desc.name not in options["name"].split(","):
        return False
    if "partition" in options and job.desc.partition != options["partition"]:
        return False
    if "account" in options and job.desc.account != options["account"]:
        return False
    if "qos" in options and job.desc.qos != options["qos"]:
        return False
    if "user" in options and options["user"] not in (daemon.controller.user.name, str(daemon.controller.user.uid)):
        return False
    if "nodelist" in options:
        from ...core.hostlist import expand

        if not set(expand(options["nodelist"])) & set(job.nodes):
            return False
    if "state" in options:
        state = options["state"].upper()
        if state not in ("PENDING", "PD", "RUNNING", "R", "SUSPENDED", "S"):
            raise Refusal(f"scancel: error: Invalid job state specified: {options['state']}")
        return state in (job.state.value, job.state.short)
    return True
