"""scontrol: shows and changes jobs, nodes and partitions."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ...core import error_texts, hostlist
from ...core.error_texts import CommandDone, ControllerError, Refusal
from ...core.job_ids import SelectedStep, find, parse, single_element
from ...core.model import BATCH, JobRecord
from ...core.orders import Say
from ...core.shape import host_name
from ...slurmctld import requeue
from ..options.getopt import GetoptParser, table
from ..options.read_words import cluster_named
from ..show import scontrol_show as show
from ..show.as_newer_json import NewerJsonWriter, writer_for
from ..show.scontrol_show import associations
from .scontrol_update import parts, update

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    all,a cluster:clusters,M= clusters,M= details,d federation,F future help,h hide json? local
    oneliner,o quiet,Q sibling uid,u= usage verbose,v version,V
""")
VERBS = tuple(
    """
    hold uhold holdu listpids ping release requeue requeuehold show update version write suspend resume top
    reconfigure shutdown create delete notify token reboot wait_job completing setdebug setdebugflags schedloglevel
    takeover cancel_reboot errnumstr pidinfo abort cluster fsdampeningfactor
    """.split()
)
# The messages that --quiet drops; quiet_flag of src/scontrol (24.11). The exit status stays.
QUIET = re.compile(
    r"(?:slurm|scontrol)_\w+ error|too few arguments|invalid entity|(?!scontrol: ).* for job "
    r"|(?:Job|Node|Partition) .* not found|No jobs in the system"
)
OF_JOBS = {verb: verb for verb in ("requeue", "requeuehold", "hold", "uhold", "release", "suspend", "resume", "top")}
OF_JOBS["holdu"] = "uhold"
ENTITIES = tuple(
    """
    aliases assoc_mgr burstbuffer config daemons dwstat federation frontend hostlist hostlistsorted hostnames job
    jobs jobid licenses node nodes partitions partition reservations slurmd step steps topology
    """.split()
)


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, words = GetoptParser("scontrol", OPTIONS).parse(client.words, permute=True)
    options = dict(pairs)
    _check_release(options, daemon)
    if "help" in options or "usage" in options:
        client.print("scontrol [<OPTION>] [<COMMAND>]")
        raise CommandDone
    if "version" in options:
        client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
        raise CommandDone
    cluster_named("scontrol", options.get("clusters") or options.get("cluster"), daemon)
    if "quiet" in options:
        client.dropped = QUIET
    if not words:
        return 0
    verb = _abbreviated(words[0].lower(), VERBS)
    if verb == "show":
        try:
            return _show(client, daemon, options, words[1:])
        except show.NotFound as missing:
            client.print(str(missing))
            return 1
    if verb in OF_JOBS:
        return _each(client, daemon, words[1:], OF_JOBS[verb])
    return await _change(client, daemon, verb, words)


async def _change(client: Connection, daemon: Daemon, verb: str, words: list[str]) -> int:
    if verb == "update":
        return update(client, daemon, words[1:])
    if verb == "write":
        return await _write(client, daemon, words[1:])
    if verb == "wait_job":
        return await _wait_job(client, daemon, words[1:])
    if verb == "notify":
        return _notify(client, daemon, words[1:])
    if verb == "ping":
        client.print(f"Slurmctld(primary) at {host_name()} is UP")
    elif verb == "version":
        client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
    elif verb == "listpids":
        _list_pids(client, daemon)
    elif verb:
        raise Refusal(f"scontrol: error: {verb} is not supported by this fake cluster")
    else:
        raise Refusal(f"invalid keyword: {words[0]}")
    return 0


def _job(client: Connection, daemon: Daemon, words: list[str], verb: str, least: int) -> JobRecord | None:
    """Returns the job that the first word names. If this word is not a job's id, prints an error and returns None."""
    if len(words) < least:
        raise Refusal(f"too few arguments for keyword:{verb}")
    name = parse(words[0])
    if not name:
        client.write(f"Invalid job_id {words[0]}")
        return None
    return next(iter(find(daemon.model, name)), None)


async def _wait_job(client: Connection, daemon: Daemon, words: list[str]) -> int:
    job = _job(client, daemon, words, "wait_job", 1)
    if job and job.running:
        client.error(f"scontrol: Nodes are ready for job {words[0]}")
        return 0
    if words[0].isdigit():
        client.error(f"scontrol: {f'Job {words[0]} no longer running' if job else f'Problem running job {words[0]}'}")
    return 1


def _notify(client: Connection, daemon: Daemon, words: list[str]) -> int:
    """Prints a text in the output of a job's script, or of the srun that made the job."""
    job = _job(client, daemon, words, "notify", 2)
    why = "No error" if not parse(words[0]) else error_texts.INVALID_JOB_ID if not job else ""
    why = (
        why or (job and (error_texts.DISABLED if job.waits else "" if job.running else error_texts.ALREADY_DONE)) or ""
    )
    if why or not job:
        raise Refusal(f"job notify failure: {why}")
    steps = [step for step in job.steps if step.live and (step.id == BATCH or job.made_by_srun)]
    for step in steps[:1]:
        who = "slurmstepd: error" if step.id == BATCH else "srun"
        daemon.controller.runner.order(job, step, Say(f"{who}: {' '.join(words[1:])}"))
    return 0


def _check_release(options: dict[str, str], daemon: Daemon) -> None:
    if "json" in options and not daemon.shape.settings.release.scontrol_has_json:
        raise Refusal("scontrol: unrecognized option '--json'\nTry \"scontrol --help\" for more information")


def _abbreviated(word: str, known: tuple[str, ...]) -> str:
    if word in known:
        return word
    return next((each for each in known if len(word) >= 2 and each.startswith(word)), "")


def _show(client: Connection, daemon: Daemon, options: dict[str, str], words: list[str]) -> int:
    if not words:
        raise Refusal("too few arguments for keyword:show")
    name, equals, value = words[0].partition("=")
    entity = _abbreviated(name.lower(), ENTITIES)
    rest = [value, *words[1:]] if equals else words[1:]
    argument = rest[0] if rest else ""
    one_line, release = "oneliner" in options, daemon.shape.settings.release
    if entity in ("hostnames", "hostlist", "hostlistsorted"):
        name = release.nodes_variable
        return _host_lists(
            client, entity, argument or (client.environ.get(name) or "" if entity == "hostnames" else "")
        )
    if "json" in options:
        return _show_json(client, daemon, entity, argument)
    if entity in ("job", "jobs", "jobid"):
        texts = _jobs(daemon, argument, "details" in options)
    elif entity in ("step", "steps"):
        texts = show.steps(daemon, argument)
        if not texts and argument:
            client.print(f"Job step {argument} not found")
            return 1
    elif entity in ("node", "nodes"):
        texts = show.nodes(daemon, argument)
    elif entity in ("partition", "partitions"):
        texts = show.partitions(daemon, argument)
    elif entity == "config":
        texts = [show.config(daemon)]
        one_line = False
    else:
        return _show_small(client, daemon, entity, name)
    for text in texts:
        client.print(" ".join(line.lstrip() for line in text.splitlines()).rstrip() if one_line else text)
    return 0


def _show_json(client: Connection, daemon: Daemon, entity: str, argument: str) -> int:
    writer, model = writer_for(daemon.controller), daemon.model
    if entity.startswith("job"):
        name = parse(argument) if argument else None
        jobs = find(model, name) if name else [] if argument else list(model.jobs.values())
        if argument and not jobs:
            raise Refusal(f"slurm_load_jobs error: {error_texts.INVALID_JOB_ID}")
        client.print(writer.write("jobs", [writer.job(job) for job in jobs]))
    elif entity.startswith("node"):
        names = hostlist.expand(argument) if argument else list(model.nodes)
        client.print(
            writer.write("nodes", [writer.node(model, model.nodes[name]) for name in names if name in model.nodes])
        )
    elif entity.startswith("partition") and isinstance(writer, NewerJsonWriter):
        shown = [part for part in model.partitions.values() if argument in ("", part.name)]
        client.print(writer.write("partitions", [writer.partition(part) for part in shown]))
    else:
        raise Refusal(f"scontrol: error: --json of {entity or argument} is not supported by this fake cluster")
    return 0


def _show_small(client: Connection, daemon: Daemon, entity: str, name: str) -> int:
    texts = {
        "aliases": " ".join(daemon.model.nodes),
        "daemons": "slurmctld slurmd",
        "reservations": "No reservations in the system",
        "assoc_mgr": associations(daemon) if entity == "assoc_mgr" else "",
        "topology": "",
        "licenses": "No licenses configured in Slurm.",
    }
    if entity == "topology" and daemon.shape.settings.release.says_no_topology:
        client.error("scontrol: error: No topology information available")
    elif entity in texts:
        client.write(texts[entity] and f"{texts[entity]}\n")
    elif entity:
        raise Refusal(f"scontrol: error: show {entity} is not supported by this fake cluster")
    else:
        raise Refusal(f"invalid entity:{name} for keyword:show")
    return 0


def _host_lists(client: Connection, entity: str, argument: str) -> int:
    try:
        hosts = hostlist.expand(argument, strict=True)
    except hostlist.HostlistError:
        client.error(f"Invalid hostlist: {argument}")
        return 0
    if entity == "hostnames":
        if not argument:
            client.error("scontrol: error: host list is empty")
        for host in hosts:
            client.print(host)
    else:
        client.print((hostlist.compress if entity == "hostlist" else hostlist.compress_sorted)(hosts))
    return 0


def _jobs(daemon: Daemon, argument: str, details: bool) -> list[str]:
    if not argument:
        jobs = list(daemon.model.jobs.values())
        return [show.job(daemon, job, details) for job in jobs] or ["No jobs in the system"]
    name = parse(argument)
    if not name:
        raise Refusal(f"scontrol_print_job error: {error_texts.INVALID_JOB_ID}")
    jobs = find(daemon.model, name)
    if not jobs and name.indexes is not None and daemon.model.elements(name.job):
        if daemon.shape.settings.release.missing_element_on_stderr:
            raise Refusal(f"Job {argument} not found")
        raise show.NotFound(f"Job {argument} not found")
    if not jobs:
        raise Refusal(f"slurm_load_jobs error: {error_texts.INVALID_JOB_ID}")
    jobs.sort(key=lambda job: (not job.waits, job.id if job.het else -job.id))
    if name.indexes is not None:
        jobs = [
            single_element(job, index)
            for job in jobs
            for index in name.indexes
            if job.array and index in job.array.indexes
        ]
    return [show.job(daemon, job, details) for job in jobs]


def _each(client: Connection, daemon: Daemon, words: list[str], verb: str) -> int:
    """Runs the command `verb` (requeue, requeuehold, hold, uhold, release, ...) for each job of a list."""
    state, release = "", daemon.shape.settings.release
    if words and words[0].lower().startswith("state="):
        state = words.pop(0).partition("=")[2].lower()
    incomplete = verb.startswith("requeue") and words[:1] and words[0].lower() == "incomplete"
    words = words[1:] if incomplete else words
    if not words and not incomplete:
        raise Refusal(f"too few arguments for keyword:{verb}")
    code = 0
    for text in ",".join(words).split(","):
        if not text:
            continue
        name, jobs, by_name = _named(daemon, text, verb)
        text = text.partition("=")[2] if by_name else text
        if by_name and any(job.running for job in jobs):
            client.error("slurm_suspend error: No error")
            code = 1
        try:
            if not name or not (jobs or by_name):
                raise ControllerError(error_texts.INVALID_JOB_ID)
            if verb.startswith("requeue"):  # the leader's requeue requeues all components of a heterogeneous job
                jobs = [job for job in jobs if not job.het or not job.het.offset] or jobs
                jobs = [job for job in jobs if job.shares and not job.completing] if incomplete else jobs
            for job in jobs:
                for one in parts(daemon, job, name):
                    _do(daemon, one, verb, state)
        except ControllerError as error:
            if verb == "suspend" and name and str(error) == error_texts.INVALID_JOB_ID:
                error = ControllerError("Unexpected message received")  # slurmctld's error
            client.error(f"{error} for job {text}")
            if verb in ("hold", "uhold", "release"):
                client.error(f"slurm_suspend error:{release.after_suspend_error}{error}")
            code = 1
    return code


def _named(daemon: Daemon, text: str, verb: str) -> tuple[SelectedStep | None, list[JobRecord], bool]:
    """Returns the jobs that an id or JobName=NAME selects. Only hold, uhold and release accept JobName=."""
    if text.lower().startswith(("jobname=", "name=")) and verb in ("hold", "uhold", "release"):
        wanted = text.partition("=")[2]
        return SelectedStep(0), [job for job in daemon.model.live_jobs() if job.desc.name == wanted], True
    name = parse(text)
    return name, find(daemon.model, name) if name else [], False


def _do(daemon: Daemon, job: JobRecord, verb: str, state: str) -> None:
    controller = daemon.controller
    if verb == "requeue":
        requeue.requeue(controller, job)
    elif verb == "requeuehold":
        requeue.requeue(
            controller, job, hold="special" if state.startswith("special") else "job requeued in held state"
        )
    elif job.over or (verb == "hold" and job.completing):
        raise ControllerError(error_texts.FINISHED)
    elif verb == "release":
        controller.release(job)
    elif verb == "top":
        controller.move_to_top(job)
    elif verb == "suspend":
        requeue.suspend(controller, job)
    elif verb == "resume":
        requeue.resume(controller, job)
    else:
        controller.hold(job, "JobHeldAdmin" if verb == "hold" else "JobHeldUser")


async def _write(client: Connection, daemon: Daemon, words: list[str]) -> int:
    if not words or words[0].lower() != "batch_script" or len(words) < 2:
        raise Refusal("invalid entity for keyword:write")
    number = words[1]
    job = daemon.model.jobs.get(int(number)) if number.isdigit() else None
    script = daemon.controller.spool.of(job) / "slurm_script" if job else None
    if not script or not script.exists():
        client.error(f"job script retrieval failed: {error_texts.INVALID_JOB_ID}")
        return 0
    text = script.read_bytes().decode("utf-8", "surrogateescape")
    target = words[2] if len(words) > 2 else f"slurm-{number}.sh"
    if target == "-":
        client.write(text)
        return 0
    path = os.path.join(client.cwd, target)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(path, 0o666 & ~client.umask)
    client.print(f"batch script for job {number} written to {target}")
    return 0


def _list_pids(client: Connection, daemon: Daemon) -> None:
    client.print("PID      JOBID    STEPID   LOCALID GLOBALID")
    for job in daemon.model.holding():
        for step in job.steps:
            for rank, pid in enumerate(step.pids if step.live else []):
                client.print(f"{pid:<8} {job.id:<8} {step.id:<8} {rank:<7} {rank}")
