"""sacct: prints the rows that accounting has for jobs and their steps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core import times
from ...core.error_texts import CommandDone, Refusal
from ...core.job_ids import SelectedStep, parse, split_list
from ...core.release import Release
from ...core.shape import User
from ...slurmdbd.accounting import AccountingJob, AccountingStep
from ..options.getopt import GetoptParser, Option, table
from ..options.read_words import read_words
from .sacct_fields import FIELDS, LONG, SacctLine, names_in
from .sacct_json import sacct_writer

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

OPTIONS = table("""
    allclusters,L allusers,a accounts,A= associations,x= allocations,X batch-script,B brief,b cluster:clusters,M=
    clusters,M= completion,c delimiter= duplicates,D endtime,E= env-vars fields:format,o= file,f= flags,F= format,o=
    gid,g= group:gid,g= help,h helpformat,e help-fields:helpformat,e jobs,j= local long,l name= ncpus,I=
    nodelist,N= nnodes,i= noconvert noheader,n parsable,p parsable2,P partition,r= qos,q= reason= starttime,S= state,s=
    timelimit-max,K= timelimit-min,k= truncate,T uid,u= user:uid,u= usage,U use-local-uid units= verbose,v version,V
    wckeys,W= whole-hetjob? federation constraints,C=
""")
ARRAY = Option("array", takes="")
DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
UNITS = "KMGTP"
BRIEF = "JobID,State,ExitCode"
STATES = tuple(
    """
    BF boot_fail CA cancelled CD completed DL deadline F failed NF node_fail OOM out_of_memory PD pending PR
    preempted R running RQ requeued RS resizing RV revoked S suspended TO timeout
    """.split()
)


async def run(client: Connection, daemon: Daemon) -> int:
    release = daemon.shape.settings.release
    known = OPTIONS + table(release.json_options) + ([ARRAY] if release.sacct_has_array else [])
    pairs, rest = read_words(client, daemon, GetoptParser("sacct", known), "sacct [<OPTION>]")
    options, fields = dict(pairs), names_in(release)
    if "helpformat" in options:
        for i in range(0, len(fields), 4):
            client.print(" ".join(f"{field:<19}" for field in fields[i : i + 4]).rstrip())
        raise CommandDone
    if rest:
        raise Refusal(f"sacct: error: Unknown arguments:\nsacct: error:  {rest[0]}")
    for option in ("completion", "constraints", "flags", "ncpus", "nnodes", "reason"):
        if option in options:
            raise Refusal(f"sacct: error: --{option} is not supported by this fake cluster")
    if "file" in options:
        found = os.path.isfile(os.path.join(client.cwd, options["file"]))
        raise Refusal("Slurm job completion is disabled" if found else f"{options['file']} is not a valid file")
    if "units" in options and options["units"][:1] not in tuple(UNITS):
        text = f"Invalid unit type '{options['units']}'. Possible options are '{UNITS}'"
        raise Refusal(f"sacct: error: {text}\nsacct: fatal: Invalid unit type")
    names = [_name(text) for option, value in pairs if option == "jobs" for text in split_list(value)]
    rows = _rows(options, names, daemon)
    for option, title in (("batch-script", "Batch Script"), ("env-vars", "Environment used")):
        if option in options:  # stored only on a site with AccountingStoreFlags=job_script,job_env
            for row in rows:
                client.print(f"{title} for {row.id_text}\n{'-' * 80}\nNONE{release.after_script}")
            return 0
    if "json" in options or "yaml" in options:
        writer = sacct_writer(daemon.controller)
        write = writer.write if "json" in options else writer.write_yaml
        client.print(write("jobs", [writer.accounted(row) for row in rows], accounting=True))
        return 0
    steps = "allocations" not in options
    context = (daemon.controller.user, daemon.shape.name, daemon.controller.clock(), release)
    if "array" in options:
        rows = [one for row in rows for one in spread(row)]
    lines = [line for row in rows for line in _lines(row, names, steps, context)]
    _print(client, options, lines, fields)
    return 0


def spread(row: AccountingJob) -> list[AccountingJob]:
    """Returns one row for each element of a waiting array."""
    if row.array_id is None or row.index is not None:
        return [row]
    array = parse(row.id_text.partition("%")[0].rstrip("]") + "]")
    indexes = array.indexes if array and array.indexes else []
    return [replace(row, index=index, id_text=f"{row.array_id}_{index}") for index in indexes]


def _name(text: str) -> SelectedStep:
    name = parse(text)
    if not name:
        raise Refusal(f"sacct: fatal: Bad job/step specified: {text}")
    return name


def _rows(options: dict[str, str], names: list[SelectedStep], daemon: Daemon) -> list[AccountingJob]:
    now = daemon.controller.clock()
    whole_hets = options.get("whole-hetjob", "no").lower() in ("", "yes")
    rows = daemon.controller.records.accounting.listed(
        now, [name.job for name in names] if names and not whole_hets else None
    )
    if names:
        found = [row for row in rows if any(_finds(name, row) for name in names)]
        if whole_hets:
            whole = {row.het_id for row in found} - {None}
            found = [row for row in rows if row in found or row.het_id in whole]
        rows = found
    return _filtered(options, rows, now, bool(names), daemon)


def _filtered(
    options: dict[str, str], rows: list[AccountingJob], now: float, named: bool, daemon: Daemon
) -> list[AccountingJob]:
    """`named`: whether --jobs is given."""
    if "duplicates" not in options:
        last = {(row.job, row.array_id, row.index): row for row in rows if row.state != "RESIZING"}
        rows = [row for row in rows if row.state == "RESIZING" or last[row.job, row.array_id, row.index] is row]
    states, begin, end = window(options, now, named)
    rows = [row for row in rows if is_within(row, states, begin, end, named)]
    checks: list[tuple[str, Callable[[AccountingJob], str]]] = [
        ("name", lambda row: row.name),
        ("partition", lambda row: row.partition),
        ("accounts", lambda row: row.account),
        ("qos", lambda row: row.qos),
    ]
    for option, of in checks:
        if option in options:
            rows = [row for row in rows if of(row) in options[option].split(",")]
    if options.get("wckeys") or "associations" in options:
        rows = []  # no job of the fake has a WCKey or a reservation
    least, most = _limit(options.get("timelimit-min")), _limit(options.get("timelimit-max"))
    if least:
        rows = [row for row in rows if row.minutes and least <= row.minutes <= (most or least)]
    user = options.get("uid")
    me = daemon.controller.user
    if user and not {me.name, str(me.uid)} & set(user.split(",")):
        rows = []
    if "gid" in options and not {me.group, str(me.gid)} & set(options["gid"].split(",")):
        rows = []
    if "nodelist" in options:
        from ...core.hostlist import expand

        wanted = set(expand(options["nodelist"]))
        rows = [row for row in rows if wanted & set(row.nodes)]
    return rows


def _limit(text: str | None) -> int | None:
    try:
        found = None if text is None else times.minutes(text)
    except times.BadTime:
        found = 0
    if found == 0:
        raise Refusal("sacct: fatal: Invalid time limit specification")
    return found


def in_unit(text: str, unit: str) -> str:
    """Converts sizes to the unit of --units: 3588K in M is 3.50M. Also converts sizes in a list like cpu=1,mem=2G."""

    def converted(match: re.Match[str]) -> str:
        number = float(match[1]) * 1024 ** (UNITS.index(match[2]) - UNITS.index(unit))
        return (f"{number:.0f}" if number.is_integer() else f"{number:.2f}") + unit

    return re.sub(rf"\b(\d+(?:\.\d+)?)([{UNITS}])\b", converted, text)


def _finds(name: SelectedStep, row: AccountingJob) -> bool:
    if row.het_id is not None and row.het_id == name.job:
        return name.offset in (None, row.het_offset)
    if name.indexes is not None:
        return row.array_id == name.job and (row.index in name.indexes or row.index is None)
    return name.job in (row.job, row.array_id)


def window(options: dict[str, str], now: float, named: bool) -> tuple[list[str] | None, float, float]:
    """Returns --state, --starttime and --endtime. With --state, the window is an instant, unless --endtime is given."""

    def moment(option: str) -> float | None:
        if option not in options:
            return None
        text = options[option]
        try:
            return times.moment(text, now)
        except times.BadTime:
            raise Refusal(f"Invalid time specification (pos=0): {text}") from None

    begin, end = moment("starttime"), moment("endtime")
    if end is None:
        end = begin if begin is not None and "state" in options else now
    if begin is None:
        begin = 0 if named else now if "state" in options else times.moment("00:00", now) - 86400
    if begin > end:
        form = (times.stamp(begin), times.stamp(end))
        raise Refusal(f"sacct: error: Start time ({form[0]}) requested is after end time ({form[1]}).")
    return [_state(word) for word in options["state"].split(",")] if "state" in options else None, begin, end


def is_within(row: AccountingJob, states: list[str] | None, begin: float, end: float, named: bool) -> bool:
    """Whether the job was there (or had one of `states`) in the window. Without --jobs, a job is there from the time
    when it was eligible: a held job never is."""

    def overlaps(first: float | None, last: float | None) -> bool:
        return first is not None and first <= end and (last is None or last >= begin)

    if states is None:
        return overlaps(row.submit if named else row.eligible, row.end)
    ended = row.end is not None and row.state in states and begin <= row.end <= end
    waited = "PENDING" in states and overlaps(row.eligible, row.end if row.start is None else row.start)
    return ended or waited or ("RUNNING" in states and bool(row.nodes) and overlaps(row.start, row.end))


def _state(word: str) -> str:
    low = word.lower()
    for short, state in zip(STATES[::2], STATES[1::2], strict=True):
        if low in (short.lower(), state):
            return state.upper()
    raise Refusal(f"sacct: fatal: unrecognized job state value '{word}'")


def _lines(
    row: AccountingJob, names: list[SelectedStep], steps: bool, context: tuple[User, str, float, Release]
) -> list[SacctLine]:
    only = {name.step for name in names if name.step and _finds(name, row)}
    whole = not names or any(_finds(name, row) and not name.step for name in names)
    lines = [SacctLine(row, None, *context)] if whole else []
    if steps:
        chosen: list[AccountingStep] = [step for step in row.steps if whole or step.id in only]
        lines += [SacctLine(row, step, *context) for step in chosen]
    return lines


def _print(client: Connection, options: dict[str, str], lines: list[SacctLine], all_fields: list[str]) -> None:
    fields, widths = _fields_of(client, options, all_fields)
    header = "noheader" not in options
    values = [FIELDS[field].value for field in fields]
    rows = [tuple([value(line) for value in values]) for line in lines]
    if "units" in options:
        sizes_of = [place for place, field in enumerate(fields) if re.search("Mem|RSS|VMSize|TRES", field)]
        unit = options["units"][0]
        rows = [
            tuple(in_unit(text, unit) if place in sizes_of else text for place, text in enumerate(row)) for row in rows
        ]
    if "parsable" in options or "parsable2" in options:
        delimiter = options.get("delimiter", "|")
        end = delimiter if "parsable" in options and "parsable2" not in options else ""
        texts = [delimiter.join(row) + end for row in ([tuple(fields)] if header else []) + rows]
    else:
        sizes = [widths.get(field, FIELDS[field].width) for field in fields]
        texts = []
        if header:
            titles = zip(fields, sizes, strict=True)
            texts.append("".join(fit(field, size, title=True) + " " for field, size in titles))
            texts.append("".join("-" * abs(size) + " " for size in sizes))
        texts += aligned(rows, sizes)
    client.write("".join([text + "\n" for text in texts]))


def _fields_of(client: Connection, options: dict[str, str], all_fields: list[str]) -> tuple[list[str], dict[str, int]]:
    """Returns the columns, and the widths that the user chose for some of them."""
    text = options.get("format") or (BRIEF if "brief" in options else LONG if "long" in options else "")
    text = text or client.environ.get("SACCT_FORMAT") or DEFAULT
    if text.upper() == "ALL":
        text = ",".join(all_fields)
    widths: dict[str, int] = {}
    fields: list[str] = []
    for part in text.split(","):
        name, percent, width = part.partition("%")
        known = next((field for field in all_fields if field.lower() == name.lower()), None)
        known = known or next(
            (field for field in all_fields if len(name) > 2 and field.lower().startswith(name.lower())), None
        )
        if not known:
            raise Refusal(f'sacct: error: Invalid field requested: "{name}"')
        fields.append(known)
        if percent and re.fullmatch(r"-?\d+", width):
            widths[known] = int(width)
    return fields, widths


def aligned(rows: list[tuple[str, ...]], sizes: list[int]) -> Iterator[str]:
    """Yields the table's lines. Formats all cells of a row together, and calls `fit` only if a cell is too long."""
    form, length = "".join(f"%{size}s " for size in sizes), sum(map(abs, sizes)) + len(sizes)
    for row in rows:
        line = form % row
        if len(line) > length:
            line = "".join([fit(value, size) + " " for value, size in zip(row, sizes, strict=True)])
        yield line


def fit(text: str, size: int, title: bool = False) -> str:
    """Returns the text padded to the width |size|: left-aligned if `size` is negative, else right-aligned. A text that
    is too long is cut and ends with +."""
    width = abs(size)
    if len(text) > width:
        text = text[:width] if title else text[: width - 1] + "+"
    return text.ljust(width) if size < 0 else text.rjust(width)
