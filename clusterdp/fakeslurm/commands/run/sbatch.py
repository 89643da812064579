"""sbatch: reads a script and its #SBATCH lines, and submits the job. With --wait, also waits for the end of the job."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from ...core import error_texts, job_environ
from ...core.error_texts import CommandDone, ControllerError, Refusal
from ...core.job_desc import JobDesc
from ...core.model import Array, JobRecord
from ...core.release import Release
from ...core.shape import host_name
from ..options.getopt import GetoptParser
from ..options.job_desc_of_options import job_desc
from ..options.option_values import BAD
from ..options.options import SBATCH_ENVIRON, options_of
from ..options.parsed_options import ParsedOptions
from ..options.read_words import cluster_named
from .allocation import (
    command_line,
    components_of,
    partitions_of,
    show_options,
    test_only,
)

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

HELP = """Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]

Parallel run options:"""
FAILED = "sbatch: error: Batch job submission failed: "
NO_SCRIPT = """sbatch: error: This does not look like a batch script.  The first
sbatch: error: line must start with #! followed by the path to an interpreter.
sbatch: error: For instance: #!/bin/sh"""
DOS = """sbatch: error: Batch script contains DOS line breaks (\\r\\n)
sbatch: error: instead of expected UNIX line breaks (\\n)."""
WRAPPED = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{}\n"
Pairs = list[tuple[str, str]]


async def run(client: Connection, daemon: Daemon) -> int:
    parser = GetoptParser("sbatch", options_of("sbatch", daemon.shape.settings.release), BAD)
    lines, rest = command_line(parser, client.words)
    given = dict(lines[0])
    if "help" in given or "usage" in given:
        client.print(HELP if "help" in given else "Usage: sbatch [-N nnodes] [-n ntasks]")
        raise CommandDone
    if "version" in given:
        client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
        raise CommandDone
    rest = rest[:1] and [_found(client, given, rest[0]), *rest[1:]]
    wrapped = any(name == "wrap" for line in lines for name, _ in line)
    script = await _script(client, next((v for line in lines for n, v in line if n == "wrap"), None), rest)
    groups = [[]] if wrapped else read(parser, script, "ignore-pbs" in given, daemon.shape.settings.release)
    components = components_of(
        "sbatch",
        daemon.shape.settings.release,
        lines,
        groups,
        _from_environ(client.environ, daemon.shape.settings.release),
    )
    first = components[0]
    cluster = cluster_named("sbatch", first.get("clusters"), daemon, "--cluster")
    if "verbose" in first:
        show_options(client, first)
    try:
        descs = [_desc(client, daemon, options, "wrap" if wrapped else _name(rest), rest) for options in components]
        if wrapped:
            for desc in descs:
                desc.command = None
        array = _array(first.get("array"), daemon.shape.settings.max_array)
        if "test-only" in first:
            return test_only(client, daemon, descs[0], "sbatch")
        release = daemon.shape.settings.release
        variables = await _export_file(client, first)
        if variables is None or first.get("export") not in (None, "ALL"):
            variables = job_environ.of_submitter(client.environ, first.get("export"), release) | (variables or {})
        variables |= job_environ.of_launchers(client.environ | variables, release)
        job = daemon.controller.submit_together(descs, array, script, variables)
    except ControllerError as error:
        raise error.refusal("sbatch", FAILED) from None
    daemon.controller.settle()
    if "quiet" not in first:
        client.print(_answer(job, first, cluster))
    if "wait" in first:
        await client.flush()
        return await _wait(daemon, job)
    return 0


def _answer(job: JobRecord, options: ParsedOptions, cluster: str | None) -> str:
    """Returns the line that sbatch prints, with the cluster's name if --clusters is given."""
    if "parsable" in options:
        return f"{job.id};{cluster}" if cluster else str(job.id)
    return f"Submitted batch job {job.id}" + (f" on cluster {cluster}" if cluster else "")


def _desc(client: Connection, daemon: Daemon, options: ParsedOptions, name: str, rest: list[str]) -> JobDesc:
    partition = partitions_of(options, daemon, "allocation failure: " if "test-only" in options else FAILED)
    chdir = options.get("chdir")
    folder = os.path.join(client.cwd, chdir) if chdir else client.cwd
    release = daemon.shape.settings.release
    desc = job_desc(options, folder, partition, client.error, daemon.controller.clock(), release)
    desc.shown["submit-dir"] = client.cwd
    given_name = options.get("job-name")
    desc.name = name if given_name is None else given_name
    desc.command = rest[0] if rest else None
    desc.arguments = rest[1:]
    desc.token = client.token
    desc.umask, desc.host, desc.alloc_pid = client.umask, host_name(), client.pid
    desc.submit_line = " ".join(["sbatch", *client.words])
    desc.account = options.get("account") or daemon.controller.user.name
    return desc


async def _export_file(client: Connection, options: ParsedOptions) -> dict[str, str] | None:
    """Returns the variables in the file of --export-file: NAME=VALUE, separated by NUL. They replace the submitter's
    variables."""
    name = options.get("export-file")
    if name is None:
        return None
    content = await client.read_file(f"/dev/fd/{name}" if name.isdigit() else name)
    if isinstance(content, int):
        raise Refusal(f"sbatch: error: Could not open user environment file {name}")
    words = content.decode("utf-8", "surrogateescape").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


async def _script(client: Connection, wrap: str | None, rest: list[str]) -> bytes:
    if wrap is not None:
        if rest:
            raise Refusal("sbatch: error: Script arguments not permitted with --wrap option")
        return WRAPPED.format(wrap).encode("utf-8", "surrogateescape")
    name = rest[0] if rest else ""
    content = await client.read_file(name)
    if isinstance(content, int):
        if content != errno.EISDIR:
            raise Refusal(f"sbatch: error: Unable to open file {name}")
        content = b""
    if not content:
        raise Refusal("sbatch: error: Batch script is empty!")
    if not content.startswith(b"#!"):
        raise Refusal(NO_SCRIPT)
    if b"\r\n" in content:
        raise Refusal(DOS)
    if b"\0" in content:
        raise Refusal(
            "sbatch: error: The Slurm controller does not allow scripts that\n"
            "sbatch: error: contain a NULL character '\\0'."
        )
    return content


def _found(client: Connection, given: dict[str, str], name: str) -> str:
    """Returns the path of the script `name`: in the folder of --chdir on the command line, else on PATH. Returns `name`
    itself if no such file exists.
    """
    here = os.path.join(client.cwd, given.get("chdir") or "")
    for folder in [here, *(client.environ.get("PATH", "").split(":") if "/" not in name else ())]:
        path = os.path.normpath(os.path.join(folder, name))
        if os.access(path, os.R_OK) and (folder == here or os.path.isfile(path)):
            return path
    return name


def _name(rest: list[str]) -> str:
    return os.path.basename(rest[0]) if rest else "sbatch"


def _from_environ(variables: dict[str, str], release: Release) -> list[tuple[str, str]]:
    found = [(option, variables[name]) for name, option in SBATCH_ENVIRON.items() if name in variables]
    takes = {option.name: option.takes for option in options_of("sbatch", release)}
    return [(option, value if takes.get(option) else "") for option, value in found]


def _array(text: str | None, most: int) -> Array | None:
    """Parses the value of --array, like 0-3%2 or 1,4-8:2."""
    if not text:
        return None
    body, _, throttle = text.partition("%")
    indexes: set[int] = set()
    steps = set()
    for part in body.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not match:
            raise ControllerError(error_texts.INVALID_ARRAY)
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or high >= most or not step:
            raise ControllerError(error_texts.INVALID_ARRAY)
        if match[2]:
            steps.add(step)
        indexes |= set(range(low, high + 1, step))
    numbers = sorted(indexes)
    limit = int(throttle) if throttle.isdigit() else 0
    return Array(0, numbers, len(numbers), numbers[0], numbers[-1], max(steps, default=1), limit, text)


async def _wait(daemon: Daemon, job: JobRecord) -> int:
    """Waits for the end of the job. Returns the job's exit status (for an array, the highest), or 1 if a signal ended
    the job."""
    number = job.id
    while True:
        jobs = daemon.model.elements(number) if job.array else [job]
        live = [each for each in jobs if not each.over]
        if not live:
            return max((each.status >> 8 or (1 if each.status else 0) for each in jobs), default=0)
        await daemon.change()


def read(parser: GetoptParser, script: bytes, ignore_pbs: bool, release: Release) -> list[Pairs]:
    """Returns the options in a script's #SBATCH lines by component. Reading stops at the first line with a command."""
    found: list[Pairs] = [[]]
    for number, line in enumerate(script.decode("utf-8", "surrogateescape").split("\n"), 1):
        if line.startswith("#PBS") and not ignore_pbs:
            raise Refusal(f"sbatch: error: script: line {number}: #PBS lines are not read by this fake cluster")
        if line.startswith("#SBATCH"):
            try:
                words = directive_words(line[len("#SBATCH") :], release.backslash_keeps_space)
            except ValueError as quote:
                body = line[len("#SBATCH") :].strip()
                raise Refusal(f"sbatch: fatal: script: line {number}: Unmatched `{quote}` in [{body}]") from None
            if words[:1] in (["hetjob"], ["packjob"]):
                found.append([])
                continue
            pairs, rest = parser.parse(words, permute=False)
            if rest:
                raise Refusal(f"sbatch: error: Invalid directive found in batch script: {rest[0]}", BAD)
            found[-1] += pairs
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def directive_words(text: str, keeps_space: bool = False) -> list[str]:
    """Splits an #SBATCH line into words. Blanks within quotes do not split. # begins a comment, even within a word. A
    backslash keeps the next letter unchanged, but a blank only within quotes. With `keeps_space`, a backslash also
    keeps a space outside quotes.
    """
    words: list[str] = []
    word, inside, quote, escaped = "", False, "", False
    for letter in text:
        if escaped and (quote or not letter.isspace() or (keeps_space and letter == " ")):
            word, inside, escaped = word + letter, True, False
            continue
        escaped = letter == "\\"
        if escaped:
            continue
        if quote:
            if letter == quote:
                quote = ""
            else:
                word += letter
        elif letter in "'\"":
            quote, inside = letter, True
        elif letter == "#":
            break
        elif letter.isspace():
            if inside:
                words.append(word)
            word, inside = "", False
        else:
            word, inside = word + letter, True
    if quote:
        raise ValueError(quote)
    return [*words, word] if inside else words
