"""sstat: prints the resource usage of tasks in running steps, as far as a laptop can measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import processes
from ...core.error_texts import Refusal
from ...core.hostlist import compress
from ...core.job_ids import find, parse, split_list
from ...core.model import BATCH, JobRecord, Step
from ...core.times import clock
from ..options.getopt import GetoptParser, table
from ..options.read_words import read_words
from . import sacct_fields
from .sacct import fit

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    allsteps,a fields,o= format= help,h helpformat,e jobs,j= noconvert noheader,n parsable,p parsable2,P pidformat,i
    usage verbose,v version,V
""")
DEFAULT = "JobID,MaxVMSize,AveVMSize,MaxRSS,AveRSS,MinCPU,AveCPU,NTasks"
OTHERS = ("Nodelist", "Pids")
FIELDS = {name.lower(): name for name in (*sacct_fields.FIELDS, *OTHERS)}


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, words = read_words(client, daemon, GetoptParser("sstat", OPTIONS), "sstat [<OPTION>]")
    options = dict(pairs)
    for option in ("helpformat", "pidformat"):
        if option in options:
            raise Refusal(f"sstat: error: --{option} is not supported by this fake cluster")
    options["jobs"] = ",".join([*filter(None, [options.get("jobs")]), *words[:1]])
    if not options["jobs"]:
        raise Refusal("sstat: error: You didn't give me any jobs to stat.")
    names = (options.get("fields") or options.get("format") or DEFAULT).split(",")
    for name in names:
        if name.lower() not in FIELDS:
            raise Refusal(f'sstat: error: Invalid field requested: "{name}"')
    rows = [_values(job, step) for job, step in _steps(client, daemon, options)]
    _print(client, options, [FIELDS[name.lower()] for name in names], rows)
    return 0


def _steps(client: Connection, daemon: Daemon, options: dict[str, str]) -> list[tuple[JobRecord, Step]]:
    """Returns the selected steps: each job's first live step (except the batch script), a named step, or all steps."""
    found = []
    for text in split_list(options["jobs"]):
        name = parse(text)
        if not name:
            raise Refusal(f"sstat: fatal: Bad job/step specified: {text}")
        jobs = [job for job in find(daemon.model, name) if not job.over]
        if not jobs and name.step is None:
            client.error(f"sstat: error: couldn't get steps for job {text}")
            continue
        steps = [(job, step) for job in jobs for step in job.steps if step.live]
        if name.step is not None:
            steps = [(job, step) for job, step in steps if step.id == name.step]
            if not steps:
                client.error(f"sstat: error: StepId={text} not found running.")
        elif "allsteps" not in options:
            steps = [(job, step) for job, step in steps if step.id != BATCH][:1]
        found += steps
    return found


def _values(job: JobRecord, step: Step) -> dict[str, str]:
    sizes = list(processes.sizes(step.pids).values()) or [(0, 0)]
    used = [processes.cpu_seconds([pid, *processes.descendants(pid)]) for pid in step.pids] or [0.0]
    resident, virtual = [size for size, _ in sizes], [size for _, size in sizes]
    return {
        "JobID": f"{job.name_of_id}.{step.id}",
        "NTasks": str(step.tasks),
        "MaxRSS": f"{max(resident) // 1024}K",
        "AveRSS": f"{sum(resident) // len(resident) // 1024}K",
        "MaxVMSize": f"{max(virtual) // 1024}K",
        "AveVMSize": f"{sum(virtual) // len(virtual) // 1024}K",
        "MinCPU": clock(min(used)),
        "AveCPU": clock(sum(used) / len(used)),
        "Nodelist": compress(step.nodes),
        "Pids": ",".join(map(str, step.pids)),
    }


def _print(client: Connection, options: dict[str, str], fields: list[str], rows: list[dict[str, str]]) -> None:
    header = "noheader" not in options
    table_rows = [[row.get(field, "") for field in fields] for row in rows]
    if "parsable" in options or "parsable2" in options:
        end = "" if "parsable2" in options else "|"
        for row in [fields] * header + table_rows:
            client.print("|".join(row) + end)
        return
    sizes = [{"JobID": -12, "NTasks": 8}.get(field, 10) for field in fields]
    if header:
        client.print("".join(fit(field, size, title=True) + " " for field, size in zip(fields, sizes, strict=True)))
        client.print("".join("-" * abs(size) + " " for size in sizes))
    for row in table_rows:
        client.print("".join(fit(text, size) + " " for text, size in zip(row, sizes, strict=True)))
