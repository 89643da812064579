"""errors(), known(), read_log(): find errors in the end of a log, and recognize known errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from clusterdp.batch.decide.evidence import TASKS_ENDED
from clusterdp.batch.files.rank_logs import LogFile, ends_in
from clusterdp.batch.files.texts import LAST as MOST_SAID
from clusterdp.operate.why.signature import Signature
from clusterdp.operate.why.signatures import SIGNATURES
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.tail import last_bytes

AFTER = 8  # lines after an error's line that may belong to the error
MOST_AFTER = 40  # a program that prints more lines than this after an error has continued
BEFORE = 12  # lines before a traceback that may show its cause: a CUDA assertion, a dead worker
LONGEST = 2000  # characters of a line that are searched
# Words in a file's path, or in a message below the level of an error, are no evidence. (NCCL calls its errors WARN.)
PATH = re.compile(
    r"(['\"])(?!/dev/shm|[a-z]+://|[\w./~-]*/\.triton/)[^'\"\s]*/[^'\"]*\1|(?<![\w.@+~/:-])/?(?:[\w.@+~-]+/)+[\w.@+~-]+\.pyc?\b"
)
BELOW_ERROR = re.compile(
    r"(?:[^a-z]{0,60}|.{0,60}[\s:.\[(])(?:TRACE|DEBUG|INFO|NOTICE|WARNING|[A-Za-z]*Warning)\b|\[?[DIW]\d{4} "
)
# The labels that torch and torchrun print before a line: `[rank0]: `, `[default0]:`
PREFIX = re.compile(r"(?:\[(?:rank|default)\d+\]:\s?)+")
TRACEBACK = re.compile(rb"(?:\[(?:rank|default)\d+\]:\s?)*(?:Original )?Traceback \(most recent call last\)")
INDENTED = re.compile(rb"(?:\[(?:rank|default)\d+\]:\s?)*[ \t]")
STACK = re.compile(rb"(?:\[(?:rank|default)\d+\]:\s?)*(?:[ \t]|frame #|Thread 0x|Current thread 0x)")
CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
# The last line of a traceback, or a line that is marked as an error
ERROR = re.compile(
    r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Failure|Exit)(?::|$)|Fatal Python error|"
    r"(?:.{0,80}\s)?(?:[Ff]atal|FATAL|[Ee]rror|ERROR)(?:\]|:)\s"
)
DIGITS = b"0123456789abcdefx"  # characters in numbers and addresses, which differ in alike lines
# The last line of an error in a rank's log has one of these words, and few other lines have. The search for a word
# takes 2 us a log: therefore words that shells and the system print are searched for only in the last lines.
HINTS = (b"rror", b"ERROR", b"xception", b"terminate called", b"another", b"Traceback")
LAST_HINTS = (b"illed", b"not found", b"No such file", b"denied", b"fault", b"Interrupt", b"FATAL")
LAST = 1024  # bytes
SLURMS_HINTS = (b"srun:", b"slurmstepd:", *LAST_HINTS, *HINTS)  # searched for in the log of the batch script
EARLIER_HINTS = (b"ssertion", b"imeout", *LAST_HINTS, *HINTS)  # searched for in the lines before an error
# A line that ends an attempt's part of a log. Slurm appends the next attempt's part after this line.
NEXT_ATTEMPT = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE)")
ENDED = re.compile(r"clusterdp: .* with exit code \d+.* see \S*/attempts/([^/\s]+)/logs")
OUT_OF_MEMORY = re.compile(r"slurmstepd: error: .*(?:oom[-_]kill event|exceeded (?:virtual )?memory limit).*")
# The report in which torchrun's agent names the rank of its node that failed first
ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?\n\s*time\s*: (\S+)\s*\n\s*host\s*: (\S+)\s*\n"
    r"\s*rank\s*: (\d{1,9})[^\n]*\n"
    r"\s*exitcode\s*: (-?\d+)[^\n]*\n(?:\s*error_file[^\n]*\n)?\s*traceback\s*: ([^\n]*)",
    re.DOTALL,
)
LOOK = 8 * 1024  # bytes that are read at the end of each log
FURTHER = 512 * 1024  # bytes that are read at the end of a log with many consequences
MOST_LINES = 15  # lines of an error that are shown


@dataclass(frozen=True)
class LogError:
    """An error that a log contains."""

    line: str  # the text of the error's last line: `ValueError: the loss is nan`
    at: int  # the index of this line in the searched text
    begins: int  # the index of the line where the error's traceback begins; else `at`
    known: Signature | None

    @property
    def consequence(self) -> bool:
        return self.known is not None and self.known.consequence


@lru_cache(maxsize=4096)
def known(text: str) -> Signature | None:
    """Returns the signature that matches the first line of an error. If only a vague signature or none matches that
    line, all lines are searched."""
    first, _, rest = PATH.sub(r"\1PATH\1", text).partition("\n")
    if BELOW_ERROR.match(first):
        return None
    rest = "\n".join(line for line in rest.split("\n") if not BELOW_ERROR.match(line))
    vague = None
    for signature in SIGNATURES:
        if signature.regex.search(first):
            if not signature.vague or not rest:
                return signature
            vague = vague or signature
    if rest:
        for signature in SIGNATURES:
            # Not a consequence: the lines after an error may report what followed.
            if not signature.consequence and not signature.vague and signature.regex.search(f"{first}\n{rest}"):
                return signature
    return vague


def errors(text: bytes, hints: Sequence[bytes] = HINTS) -> Iterator[LogError]:
    """Yields the errors in a text, the last error first. Chained exceptions yield only one error: one with a known
    signature, or the last. Consequences that differ only in their numbers yield one error."""
    last = text[-LAST:]
    above = text.count(b"\n", 0, len(text) - len(last))
    suspects = sorted({*_suspects(text, hints), *(above + at for at in _suspects(last, LAST_HINTS))}, reverse=True)
    lines = text.split(b"\n") if suspects else []
    before = len(lines)
    told: set[bytes] = set()
    for at in suspects:
        if at >= before or (alike := lines[at].translate(None, DIGITS)) in told:
            continue
        if (found := _error_at(lines, at)) is None:
            continue
        yield found
        before = found.begins
        if found.consequence:
            told.add(alike)


def went_on(lines: Sequence[bytes], error: LogError) -> bool:
    """Returns whether the program printed so much after an error that it must have continued. Lines of a stack do not
    count."""
    after = lines[error.at + 1 :]
    return sum(1 for line in after if line and not STACK.match(line)) > MOST_AFTER


def _suspects(text: bytes, hints: Sequence[bytes]) -> set[int]:
    """Returns the indices of the lines that contain one of `hints`. A search of the whole text for each hint takes a
    tenth of the time of a loop over lines."""
    found = set()
    for hint in hints:
        line, counted = 0, 0
        at = text.find(hint)
        while at >= 0:
            line += text.count(b"\n", counted, at)
            found.add(line)
            counted = text.find(b"\n", at)
            if counted < 0:
                break
            at = text.find(hint, counted)
    return found


def _error_at(lines: Sequence[bytes], at: int) -> LogError | None:
    if TRACEBACK.match(lines[at]):  # finds an exception whose name contains no hint
        after = (i for i in range(at + 1, len(lines)) if lines[i].strip() and not INDENTED.match(lines[i]))
        if (last := next(after, None)) is None:
            return None  # the rank was ended while it printed this traceback
        at = last
        line, signature = _bare(lines[at]), known(_with_rest(lines, at))
    else:
        line, signature = _bare(lines[at]), known(_with_rest(lines, at))
        if signature is None and (BELOW_ERROR.match(line) or not ERROR.match(line)):
            return None
    begins = _beginning(lines, at)
    error = LogError(line, at, begins, signature)
    if error.consequence:
        return error
    # The cause may be printed before the error. A known cause counts more than the error that follows it.
    for earlier in range(max(0, begins - BEFORE if begins < at else at - BEFORE), at):
        if not any(hint in lines[earlier] for hint in EARLIER_HINTS):
            continue
        text = _bare(lines[earlier])
        if text[:1] in (" ", "\t"):
            continue
        before = known(text)
        if before is None or before.consequence or before.vague or (earlier < begins and not before.precedes):
            continue
        if signature is None or SIGNATURES.index(before) < SIGNATURES.index(signature):
            return LogError(text, earlier, min(begins, earlier), before)
    return _from_the_first(lines, error) if signature is not None and signature.precedes else error


def _from_the_first(lines: Sequence[bytes], error: LogError) -> LogError:
    """Returns the first report of the same failure: C++ repeats the error of a traceback after it, and a CUDA kernel
    prints its failed assertion before the traceback."""
    for earlier in range(error.begins - 1, max(-1, error.begins - BEFORE - 1), -1):
        if (
            any(hint in lines[earlier] for hint in EARLIER_HINTS)
            and known(text := _bare(lines[earlier])) is error.known
        ):
            begins = _beginning(lines, earlier)
            if begins < earlier:
                return _from_the_first(lines, LogError(text, earlier, begins, error.known))
            return LogError(text, error.at, earlier, error.known)
    return error


def _with_rest(lines: Sequence[bytes], at: int) -> str:
    """Returns the line of an error and the following lines that belong to the error, up to the next error or
    traceback."""
    taken = [_bare(lines[at])]
    for line in lines[at + 1 : at + 1 + AFTER]:
        bare = _bare(line)
        if not bare or TRACEBACK.match(line) or ERROR.match(bare):
            break
        taken.append(bare)
    return "\n".join(taken)


def _beginning(lines: Sequence[bytes], at: int, most: int = 200) -> int:
    """Returns the index where the traceback that ends at line `at` begins, or the first traceback of its chain."""
    begins = at
    for i in range(at - 1, max(-1, at - most), -1):
        if TRACEBACK.match(lines[i]):
            begins = i
            if not any(text in each for each in lines[max(0, i - 3) : i] for text in CHAINED):
                break
        elif begins == at and not INDENTED.match(lines[i]):
            break  # another line of output: the error has no traceback
    return begins


def _bare(line: bytes) -> str:
    text = line[:LONGEST].decode(errors="replace").rstrip()
    return PREFIX.sub("", text, count=1) if text[:1] == "[" else text


@dataclass(frozen=True)
class TaskMessage:
    """A message in which srun or torchrun reports the end of ranks."""

    nodes: str
    ranks: tuple[int, ...]
    said: str  # such as `Exited with exit code 1` or `Segmentation fault (core dumped)`
    line: str  # the whole line of the message


def part_of_attempt(batch: Path, attempt: str) -> str:
    """Returns the part of an attempt in the last MiB of the batch script's log: the part whose last line reports the
    attempt's end, else the newest part in which srun reports a rank. (srun prints a line for each node.)"""
    parts: list[list[str]] = [[]]
    for line in last_bytes(batch, MOST_SAID).decode(errors="replace").splitlines():
        parts[-1].append(line)
        ended = ENDED.search(line)
        if ended and ended[1] == attempt:
            return "\n".join(parts[-1])
        if ended or NEXT_ATTEMPT.search(line):
            parts.append([])
    texts = ["\n".join(part) for part in parts]
    return next((text for text in reversed(texts) if TASKS_ENDED.search(text)), texts[-1])


def task_messages(text: str) -> Iterator[TaskMessage]:
    """Yields the messages in the order in which the ranks ended."""
    for match in TASKS_ENDED.finditer(text):
        yield TaskMessage(match[1], _ranks(match[2]), match[3].strip(), match[0])


def _ranks(listed: str, most: int = 100_000) -> tuple[int, ...]:
    """Returns the ranks in srun's list, such as (0, 1, 2, 5) for `0-2,5`."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", listed):
        found += range(int(first), min(int(last or first) + 1, int(first) + most))
    return tuple(found[:most])


def root_causes(text: str) -> list[TaskMessage]:
    """Returns the root causes in the output of torchrun's agent: each names the rank that failed first on the agent's
    node. A rank that was ended by SIGTERM does not count."""
    found = []
    for _, host, rank, code, said in ROOT_CAUSE.findall(text):
        if code != "-15":
            why = said if said.startswith("Signal") else f"Exited with exit code {code}"
            found.append(TaskMessage(host, (int(rank),), why.strip(), f"{said.strip()} exitcode : {code}"))
    return found


@dataclass(frozen=True)
class RankLog:
    """The end of a rank's log, and the error in it. A log may have any size: only its last 8 KiB are read, and more if
    these contain only errors that are consequences."""

    rank: int
    file: LogFile
    written: float  # time at which the file was last written to
    text: bytes  # the last bytes of the log
    own: LogError | None  # the last error that is not a consequence of another rank's failure
    echoes: bool  # True: the text contains a consequence

    @property
    def path(self) -> Path:
        return Path(self.file.path)

    @cached_property
    def lines(self) -> list[bytes]:
        return self.text.split(b"\n")

    @property
    def silent(self) -> bool:
        """Whether the text contains neither an error nor a consequence."""
        return self.own is None and not self.echoes

    def excerpt(self) -> list[str]:
        """Returns the lines of the error, or the last lines if there is no error; an empty list for an empty log."""
        if not self.text:
            return []
        if self.own is None:
            return _decoded(self.lines[-MOST_LINES:])
        after = self.own.at + 1
        while after < len(self.lines) and self.lines[after][:1] in (b"\t", b" ") and after < self.own.at + 5:
            after += 1  # the error has several lines
        first = max(self.own.begins, after - MOST_LINES)
        return _decoded(self.lines[first : max(after, min(len(self.lines), first + 2))])


def _decoded(lines: Sequence[bytes]) -> list[str]:
    return [line[:LONGEST].decode(errors="replace") for line in lines]


def read_log(rank: int, file: LogFile, look: int = LOOK, ends: Mapping[int, bytes] | None = None) -> RankLog:
    """Reads the end of a log. A log that is missing, or not a file, counts as empty. `ends`: from ends_in(), if other
    ranks of the same file are read, too."""
    text = (ends_in(file, look) if ends is None else ends).get(rank, b"")
    text = text.partition(b"\n")[2] if len(text) == look else text
    text = text.replace(b"\r", b"\n").rstrip()
    own, echoes = None, False
    for error in errors(text):
        if not error.consequence:
            own = error if echoes or not went_on(text.split(b"\n"), error) else None
            break
        echoes = True
    return RankLog(rank, file, modified(Path(file.path)) or 0.0, text, own, echoes)


def read_logs(files: Sequence[tuple[int, LogFile]]) -> list[RankLog]:
    """Reads the ends of the logs of ranks, those that share a file at once."""
    ends = {file: ends_in(file, LOOK) for file in {file for _, file in files} if file.is_shared}
    return [read_log(rank, file, ends=ends.get(file)) for rank, file in files]


def looked_further(log: RankLog) -> RankLog:
    """Returns the log with FURTHER bytes read, if the errors in its text are all consequences."""
    return read_log(log.rank, log.file, FURTHER) if log.own is None and log.echoes else log
