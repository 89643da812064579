"""sbatch: reads a script and its #SBATCH lines, submits it, and waits for its end if it is told to."""

import errno
import os
import re
from typing import TYPE_CHECKING

from clusterdp.fakeslurm import environ, refusals
from clusterdp.fakeslurm.asking import BAD, Asked, job_spec
from clusterdp.fakeslurm.getopt import Parser
from clusterdp.fakeslurm.model import Array, Job
from clusterdp.fakeslurm.options import SBATCH, SBATCH_ENVIRON
from clusterdp.fakeslurm.refusals import ControllerError, NoMore, Refusal
from clusterdp.fakeslurm.shape import VERSION, host_name

if TYPE_CHECKING:
    from clusterdp.fakeslurm.conversation import Conversation
    from clusterdp.fakeslurm.daemon import Daemon

FAILED = "sbatch: error: Batch job submission failed: "
NO_SCRIPT = """sbatch: error: This does not look like a batch script.  The first
sbatch: error: line must start with #! followed by the path to an interpreter.
sbatch: error: For instance: #!/bin/sh"""
DOS = """sbatch: error: Batch script contains DOS line breaks (\\r\\n)
sbatch: error: instead of expected UNIX line breaks (\\n)."""
WRAPPED = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{}\n"


async def run(talk: "Conversation", daemon: "Daemon") -> int:
    parser = Parser("sbatch", SBATCH, BAD)
    line, rest = parser.parse(talk.words, permute=False)
    given = dict(line)
    if "help" in given or "usage" in given:
        talk.print("Usage: sbatch [OPTIONS...] executable [args...]")
        raise NoMore
    if "version" in given:
        talk.print(f"slurm-wlm {VERSION}")
        raise NoMore
    script = await _script(talk, given, rest)
    asked = Asked("sbatch")
    asked.add([] if "wrap" in given else _directives(parser, script, "ignore-pbs" in given))
    asked.add(_from_environ(talk.environ))
    asked.add(line)
    if "clusters" in asked and asked.get("clusters") not in (daemon.shape.name, "all"):
        raise Refusal(f"sbatch: error: No cluster '{asked.get('clusters')}' known by database.")
    if "verbose" in asked:
        _show_options(talk, asked)
    partition = _partition(asked, daemon)
    try:
        folder = os.path.join(talk.cwd, asked.get("chdir") or "")
        spec = job_spec(asked, os.path.normpath(folder), partition, talk.error)
        spec.shown["submit-dir"] = talk.cwd
        spec.name = asked.get("job-name") if asked.get("job-name") is not None else _name(given, rest)  # type: ignore[assignment]
        spec.command = None if "wrap" in given or not rest else os.path.join(talk.cwd, rest[0])
        spec.arguments = rest[1:]
        spec.token = talk.token
        spec.umask, spec.host, spec.alloc_pid = talk.umask, host_name(), talk.pid
        spec.submit_line = " ".join(["sbatch", *talk.words])
        spec.account = asked.get("account") or daemon.controller.user.name
        array = _array(asked.get("array"), daemon.shape.settings.max_array)
        if "test-only" in asked:
            return _test_only(talk, daemon, spec)
        job = daemon.controller.submit(spec, array, script, environ.of_submitter(talk.environ, asked.get("export")))
    except ControllerError as error:
        raise Refusal(FAILED + str(error)) from None
    daemon.controller.settle()
    if "quiet" not in asked:
        talk.print(str(job.id) if "parsable" in asked else f"Submitted batch job {job.id}")
    if "wait" in asked:
        await talk.flush()
        return await _wait(daemon, job)
    return 0


async def _script(talk: "Conversation", given: dict[str, str], rest: list[str]) -> bytes:
    if "wrap" in given:
        if rest:
            raise Refusal("sbatch: error: Script arguments not permitted with --wrap option")
        return WRAPPED.format(given["wrap"]).encode("utf-8", "surrogateescape")
    name = rest[0] if rest else ""
    content = await talk.read_file(name)
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


def _name(given: dict[str, str], rest: list[str]) -> str:
    if "wrap" in given:
        return "wrap"
    return os.path.basename(rest[0]) if rest else "sbatch"


def _directives(parser: Parser, script: bytes, ignore_pbs: bool) -> list[tuple[str, str]]:
    """The #SBATCH lines before the first line that is neither empty nor a comment."""
    found: list[tuple[str, str]] = []
    for number, line in enumerate(script.decode("utf-8", "surrogateescape").split("\n"), 1):
        if line.startswith("#PBS") and not ignore_pbs:
            raise Refusal("sbatch: error: #PBS lines are not supported by this fake cluster; --ignore-pbs ignores them")
        if line.startswith("#SBATCH"):
            try:
                words = directive_words(line[len("#SBATCH") :])
            except ValueError as quote:
                body = line[len("#SBATCH") :].strip()
                raise Refusal(f"sbatch: fatal: script: line {number}: Unmatched `{quote}` in [{body}]") from None
            if words == ["hetjob"] or words == ["packjob"]:
                raise Refusal("sbatch: error: heterogeneous jobs are not supported by this fake cluster")
            pairs, rest = parser.parse(words, permute=False)
            if rest:
                raise Refusal(f"sbatch: error: Invalid directive found in batch script: {rest[0]}", BAD)
            found += pairs
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def directive_words(text: str) -> list[str]:
    """Quotes group, a backslash escapes (a blank only within quotes), # begins a comment even within a word."""
    words: list[str] = []
    word, inside, quote, escaped = "", False, "", False
    for letter in text:
        if escaped and (quote or not letter.isspace()):
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


def _from_environ(variables: dict[str, str]) -> list[tuple[str, str]]:
    found = [(option, variables[name]) for name, option in SBATCH_ENVIRON.items() if name in variables]
    flags = ("no-requeue", "requeue", "wait", "verbose")
    return [(option, "" if option in flags else value) for option, value in found]


def _show_options(talk: "Conversation", asked: Asked) -> None:
    """What --verbose says."""
    rows = {name: value or "set" for name, value in asked.values.items()} | {"verbose": "1"}
    rule = "sbatch: -------------------- --------------------"
    talk.error("sbatch: defined options\n" + rule)
    for name in sorted(rows):
        talk.error(f"sbatch: {name:<20}: {rows[name]}")
    talk.error(rule + "\nsbatch: end of defined options")


def _partition(asked: Asked, daemon: "Daemon") -> str:
    partitions = daemon.model.partitions
    name = asked.get("partition") or daemon.model.default_partition.name
    first = name.split(",")[0]
    if any(part not in partitions for part in name.split(",")):
        wrong = next(part for part in name.split(",") if part not in partitions)
        text = f"{asked.command}: error: invalid partition specified: {wrong}"
        failed = "allocation failure: " if "test-only" in asked else FAILED
        raise Refusal(f"{text}\n{failed}{refusals.INVALID_PARTITION}")
    return first


def _array(text: str | None, most: int) -> Array | None:
    """--array=0-3%2, 1,4-8:2; raises ControllerError."""
    if not text:
        return None
    body, _, throttle = text.partition("%")
    indexes: set[int] = set()
    steps = set()
    for part in body.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not match:
            raise ControllerError(refusals.INVALID_ARRAY)
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or high >= most or not step:
            raise ControllerError(refusals.INVALID_ARRAY)
        if match[2]:
            steps.add(step)
        indexes |= set(range(low, high + 1, step))
    numbers = sorted(indexes)
    limit = int(throttle) if throttle.isdigit() else 0
    return Array(0, numbers, len(numbers), numbers[0], numbers[-1], max(steps, default=1), limit, text)


def _test_only(talk: "Conversation", daemon: "Daemon", spec: object) -> int:
    import time

    from clusterdp.fakeslurm.spec import JobSpec
    from clusterdp.fakeslurm.times import stamp
    from clusterdp.slurm.hostlist import compress

    assert isinstance(spec, JobSpec)
    daemon.controller.check(spec)
    shares = daemon.controller.would_run(spec)
    if not shares:
        raise Refusal(f"allocation failure: {refusals.NODE_CONFIG}")
    number = daemon.model.new_id()
    nodes = compress([share.node for share in shares])
    cpus = sum(share.cpus for share in shares)
    talk.error(
        f"sbatch: Job {number} to start at {stamp(time.time())} using {cpus} processors on nodes {nodes} "
        f"in partition {spec.partition}"
    )
    return 0


async def _wait(daemon: "Daemon", job: Job) -> int:
    """The exit status of the job, the highest of an array's; 1 for a signal."""
    number = job.id
    while True:
        jobs = daemon.model.elements(number) if job.array else [job]
        live = [each for each in jobs if not each.over]
        if not live:
            return max((each.status >> 8 or (1 if each.status else 0) for each in jobs), default=0)
        await daemon.change()
