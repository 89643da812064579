"""squeue: lists waiting and running jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...core import error_texts
from ...core.error_texts import CommandDone, Refusal
from ...core.hostlist import expand
from ...core.job_ids import SelectedStep, parse, single_element, split_list
from ...core.model import Array, JobRecord
from ...core.release import Release
from ...core.state import JobState
from ..options.getopt import GetoptParser, table
from ..options.read_words import cluster_named, iterate
from . import columns
from .as_json import Json, JsonWriter
from .as_newer_json import writer_for
from .squeue_fields import DASHED, LETTERS, STEP_LETTERS, SqueueJob, SqueueStep, names_in

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    accounts:account,A= all,a array,r array-unique cluster:clusters,M= clusters,M= federation format,o= Format,O= help
    hide iterate,i= jobs:job,j? licenses,L= local long,l me name,n= noconvert node,w= nodelist:node,w=
    nodes:node,w= noheader,h partitions:partition,p= priority,P qos,q= reservation,R= sib:sibling sibling sort,S= start
    states:state,t= steps:step,s? usage user,u= users:user,u= verbose,v version,V
""")
DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
ONLY_STATE = "%.18i %.2t"
STEPS = "%.15i %.8j %.9P %.8u %.9M %N"
SORT = "P,t,-p"
WITH_ONLY_STATE = set(
    """
    only-job-state job state array array-unique federation local clusters sibling hide noheader sort format Format
    noconvert iterate verbose json yaml
    """.split()
)
ALONE = (
    "Option --only-job-state only works alone, with -j (--jobs) and/or -t (--states) parameters, parameters for "
    "cluster/federation selection, and the printing options."
)
TEXT_FILTERS: dict[str, tuple[str, Callable[[JobRecord], list[str]]]] = {
    "partition": ("SQUEUE_PARTITION", lambda job: job.desc.partitions),
    "name": ("SQUEUE_NAMES", lambda job: [job.desc.name]),
    "account": ("SQUEUE_ACCOUNT", lambda job: [job.desc.account]),
    "qos": ("SQUEUE_QOS", lambda job: [job.desc.qos]),
}


async def run(client: Connection, daemon: Daemon) -> int:
    release = daemon.shape.settings.release
    table_here = OPTIONS + table(f"{release.json_options} {release.squeue_options_added}")
    pairs, rest = GetoptParser("squeue", table_here).parse(client.words, permute=True)
    options = dict(pairs)
    _answer_alone(options, client, daemon)
    _check(options, release)
    if "only-job-state" in options and ("json" in options or "yaml" in options):
        options["state"] = "all"
    return await iterate(client, options, lambda: _show(options, client, daemon, rest))


def _show(options: dict[str, str], client: Connection, daemon: Daemon, rest: list[str]) -> int:
    release = daemon.shape.settings.release
    cluster = cluster_named("squeue", options.get("clusters") or client.environ.get("SLURM_CLUSTERS"), daemon)
    jobs = _chosen(options, client, daemon, rest)
    if "json" in options or "yaml" in options:
        client.print(_as_data(options, jobs, daemon))
        return 0
    if cluster and "noheader" not in options:
        client.print(f"CLUSTER: {cluster}")
    form = client.environ.get("SLURM_TIME_FORMAT", "")
    if "step" in options:
        _print_steps(client, daemon, options, jobs)
        return 0
    bitstr_len = client.environ.get("SLURM_BITSTR_LEN")
    if "only-job-state" in options:
        jobs = [_without_throttle(job) for job in jobs]
    rows = [SqueueJob(job, daemon.controller, form, bitstr_len) for job in _ordered(options, client, jobs, daemon)]
    if "start" in options:
        rows = [row for row in rows if row.job.waits]
    _print(client, options, rows, release)
    return 0


def _everything(release: Release) -> str:
    """Returns the format that `-o %all` stands for: all letters."""
    letters = sorted(LETTERS, key=lambda letter: (letter.isupper(), letter))
    return "|".join(f"%{letter}" for letter in letters if letter != "s" or "selectjobinfo" in names_in(release))


def _answer_alone(options: dict[str, str], client: Connection, daemon: Daemon) -> None:
    """Prints answers that need no job (--help, --version, ...). After such an answer, raises CommandDone."""
    settings = daemon.shape.settings
    if "helpstate" in options:
        client.print(settings.release.job_states.replace(",", "\n"))
    elif "help" in options:
        client.print("Usage: squeue [OPTIONS]")
    elif "usage" in options:
        client.print("Usage: squeue [-A account] [--clusters names] [-i seconds] [--job jobid]")
    elif "version" in options:
        client.print(f"slurm-wlm {settings.slurm_version}")
    else:
        return
    raise CommandDone


def _check(options: dict[str, str], release: Release) -> None:
    """Raises Refusal for options that contradict each other, are not supported, or have invalid values."""
    if "iterate" in options and not re.fullmatch(r"[1-9]\d*", options["iterate"]):
        raise Refusal(f"squeue: error: --iterate={options['iterate']}\n")
    for name in ("licenses", "reservation"):
        if name in options:
            raise Refusal(f"squeue: error: --{name} is not supported by this fake cluster")
    if "format" in options and "Format" in options:
        raise Refusal("squeue: error: -O (--Format) is incompatible with -o (--format)")
    if "only-job-state" in options:
        _check_only_state(options, release)


def _check_only_state(options: dict[str, str], release: Release) -> None:
    if release.only_job_state_is_alone and options.keys() - WITH_ONLY_STATE:
        raise Refusal(f"squeue: fatal: {ALONE}")
    if "step" in options:
        text = "Options --only-job-state and -s(--steps) are mutually exclusive. Please remove one and retry."
        raise Refusal(f"squeue: fatal: {text}")


def _as_data(options: dict[str, str], jobs: list[JobRecord], daemon: Daemon) -> str:
    writer, only_state = writer_for(daemon.controller), "only-job-state" in options
    if only_state:
        shown = [_state_only(one, writer) for job in jobs for one in _spread(job)]
    else:
        shown = [writer.job(job) for job in jobs]
    write = writer.write if "json" in options else writer.write_yaml
    return write("jobs", shown, accounting=only_state)  # --only-job-state has the header of sacct's JSON


def _without_throttle(job: JobRecord) -> JobRecord:
    return replace(job, array=replace(job.array, throttle=0)) if job.array else job


def _state_only(job: JobRecord, writer: JsonWriter) -> Json:
    part = f"+{job.het.offset}" if job.het else f"_{job.array.indexes[0]}" if job.array else ""
    return {"job_id": f"{job.id}{part}", "state": writer.job(job)["job_state"]}


def _chosen(options: dict[str, str], client: Connection, daemon: Daemon, rest: list[str]) -> list[JobRecord]:
    """Returns the jobs that the command's options select."""
    variables = client.environ
    known = daemon.model.jobs
    listed = options.get("job") or (rest[0] if "job" in options and rest else options.get("job"))
    must_be = "only-job-state" not in options
    jobs = _listed(listed, daemon, must_be) if listed else [] if listed == "" else None
    states = _states(options.get("state") or variables.get("SQUEUE_STATES"), daemon.shape.settings.release)
    if jobs is None:  # without --jobs, jobs that are over are left out early: the cost must not grow with the history
        jobs = list(known.values()) if states is not None else sorted(known.live.values(), key=lambda job: job.id)
    if states is None:
        jobs = [job for job in jobs if not job.over]
    elif states:
        jobs = [job for job in jobs if job.shown_state in states]
    for option, (variable, of) in TEXT_FILTERS.items():
        wanted = options.get(option) or variables.get(variable)
        if wanted:
            jobs = [job for job in jobs if {*of(job)} & {*wanted.split(",")}]
    if not _is_of_user(options, client, daemon):
        return []
    if "node" in options:
        jobs = _on_nodes(jobs, options["node"], daemon)
    return jobs


def _is_of_user(options: dict[str, str], client: Connection, daemon: Daemon) -> bool:
    """Whether the options select the only user of this cluster."""
    users = options.get("user", "").split(",")
    if "nobody" in users and not daemon.shape.settings.release.nobody_is_a_user:
        client.error("squeue: error: Invalid user: nobody\n")
    if "notme" in options:
        return False
    me = daemon.controller.user
    if "user" not in options or {me.name, str(me.uid)} >= {*users}:
        return True
    import pwd

    for user in users:
        try:
            pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        except KeyError:
            client.error(f"squeue: error: Invalid user: {user}\n")
    return bool({me.name, str(me.uid)} & {*users})


def _listed(text: str, daemon: Daemon, must_be: bool) -> list[JobRecord]:
    names = []
    for word in split_list(text):
        name = parse(word)
        if not name:
            raise Refusal(f"squeue: error: Invalid job id: {word}")
        names.append(name)
    meant = {job.id: job for name in names for job in daemon.model.jobs.named(name.job)}
    jobs = [found for number in sorted(meant) for found in _element(meant[number], names)]
    if must_be and not jobs and len(names) == 1 and not daemon.model.elements(names[0].job):
        raise Refusal(f"slurm_load_jobs error: {error_texts.INVALID_JOB_ID}")
    return jobs


def _on_nodes(jobs: list[JobRecord], text: str, daemon: Daemon) -> list[JobRecord]:
    nodes = expand(text)
    for node in nodes:
        if node not in daemon.model.nodes:
            raise Refusal(f"squeue: error: Invalid node name {node}")
    return [job for job in jobs if {share.node for share in job.shares} & set(nodes)]


def _element(job: JobRecord, names: list[SelectedStep]) -> list[JobRecord]:
    """Returns [job] if a name selects the job. For a waiting array, returns the selected elements."""
    found = [name for name in names if (name if name.offset is None else replace(name, offset=None)).finds(job)]
    indexes = {index for name in found for index in name.indexes or ()}
    if not indexes or not job.array or job.array.split:
        return [job] if found else []
    left = [index for index in job.array.indexes if index in indexes]
    if len(left) == 1:
        return [single_element(job, left[0])]
    return [replace(job, array=replace(job.array, indexes=left, throttle=0))]


def _states(text: str | None, release: Release) -> list[JobState] | None:
    """Parses --states. Returns None for all jobs that are not over, and [] for all jobs."""
    if not text:
        return None
    if text.lower() == "all":
        return []
    found = []
    for word in text.split(","):
        match = [state for state in JobState if word.upper() in (state.value, state.short)]
        if not match:
            raise Refusal(
                f"squeue: error: Invalid job state specified: {word}\n"
                f"squeue: error: Valid job states include: {release.job_states}\n"
            )
        found += match
    return found


def _ordered(options: dict[str, str], client: Connection, jobs: list[JobRecord], daemon: Daemon) -> list[JobRecord]:
    if "array" in options:
        jobs = [one for job in jobs for one in _spread(job)]
    elif "array-unique" not in options:
        jobs = _combined(jobs, newest_first="," not in (options.get("job") or ","))
    keys = (options.get("sort") or client.environ.get("SQUEUE_SORT") or SORT).split(",")
    jobs.sort(key=lambda job: (_first_of_array(job), _last_index(job)))
    if "sort" not in options and "SQUEUE_SORT" not in client.environ:
        # Of two jobs with equal keys the younger job comes first, but array elements that never ran keep their order.
        jobs.sort(key=lambda job: (-_first_id(job), -_last_index(job) if job.past or job.shares else job.id))
    for key in reversed(keys):
        jobs.sort(key=_sort_key(key[-1], daemon), reverse=key.startswith("-"))
    return jobs


def _first_id(job: JobRecord) -> int:
    return job.array.id if job.array else job.het.leader if job.het else job.id


def _first_of_array(job: JobRecord) -> int:
    return job.array.id if job.array else job.id


def _last_index(job: JobRecord) -> int:
    return job.array.indexes[-1] if job.array else 0


def _sort_key(letter: str, daemon: Daemon) -> Callable[[JobRecord], Any]:
    if letter == "t":
        return lambda job: job.shown_state.short
    if letter == "p":
        return lambda job: 0 if job.held else job.priority
    if letter in "iA":
        return _first_of_array
    field = LETTERS.get(letter)
    return lambda job: field.value(SqueueJob(job, daemon.controller, "")) if field else ""


def _spread(job: JobRecord) -> list[JobRecord]:
    array: Array | None = job.array
    if not array or array.split or array.emptied:
        return [job]
    return [single_element(job, index) for index in array.indexes]


def _combined(jobs: list[JobRecord], newest_first: bool) -> list[JobRecord]:
    """Merges waiting elements that have their own records into the line of their array, with all reasons."""
    shown = list(jobs)
    for whole in jobs:
        if not whole.array or whole.array.split or not whole.waits:
            continue
        same = (whole.array.id, whole.desc.name, whole.desc.partition)
        parts = [
            job
            for job in jobs
            if job.array and job.array.split and job.waits and (job.array.id, job.desc.name, job.desc.partition) == same
        ]
        if not parts:
            continue
        reasons = dict.fromkeys([whole.reason])
        for part in sorted(parts, key=lambda job: job.id, reverse=newest_first):
            if not any(part.reason in reason for reason in reasons):
                reasons[part.reason] = None
        indexes = sorted([*whole.array.indexes, *(part.array.indexes[0] for part in parts if part.array)])
        line = replace(whole, array=replace(whole.array, indexes=indexes, throttle=0), reason=",".join(reasons))
        shown = [line if job is whole else job for job in shown if job not in parts]
    return shown


def _print(client: Connection, options: dict[str, str], rows: list[SqueueJob], release: Release) -> None:
    header = "noheader" not in options
    variables = client.environ

    def complain(key: str) -> str:
        client.error(f"squeue: error: Invalid job format specification: {key}")
        return f"%{key}"

    def complain_long(key: str) -> str:
        client.error(f"squeue: error: Invalid job format specification: {long_names.get(key, key)}")
        return ""

    long_format = options.get("Format")
    if long_format is None and "format" not in options and "long" not in options and "SQUEUE_FORMAT" not in variables:
        long_format = variables.get("SQUEUE_FORMAT2")
    if long_format is not None:
        long_names = {
            re.sub("[-_]", "", part.partition(":")[0].lower()): part.partition(":")[0]
            for part in long_format.split(",")
        }
        bad = columns.misspelt(long_format, DASHED)
        fields = {name: field for name, field in names_in(release).items() if name not in bad}
        lines = columns.render("", columns.parse_long(long_format), fields, rows, header, complain_long)
    else:
        short = options.get("format") or (LONG if "long" in options else START if "start" in options else None)
        short = short or variables.get("SQUEUE_FORMAT") or (ONLY_STATE if "only-job-state" in options else DEFAULT)
        first, cells = columns.parse_short(_everything(release) if short == "%all" else short)
        lines = columns.render(first, cells, LETTERS, rows, header, complain)
    client.write("".join([line + "\n" for line in lines]))


def _print_steps(client: Connection, daemon: Daemon, options: dict[str, str], jobs: list[JobRecord]) -> None:
    wanted = [parse(text) for text in split_list(options.get("step") or "")]
    rows = []
    for job in jobs:
        for step in sorted(job.steps, key=lambda step: (step.id == "batch", len(step.id), step.id)):
            named = not wanted or any(name and name.finds(job) and name.step in (None, step.id) for name in wanted)
            if step.live and named:
                rows.append(SqueueStep(job, step, daemon.controller))

    def complain(key: str) -> str:
        client.error(f"squeue: error: Invalid job step format specification: {key}")
        return f"%{key}"

    first, cells = columns.parse_short(options.get("format") or STEPS)
    for line in columns.render(first, cells, STEP_LETTERS, rows, "noheader" not in options, complain):
        client.print(line)
