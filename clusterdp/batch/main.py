"""main: the command line of the batch program.

    run RUN OPTION... -- STEP...    the whole attempt; STEP is the srun command of the ranks
"""

import os
import sys
import time
import traceback
from typing import Dict, List, Mapping, NamedTuple, Sequence

from .attempt import Setup, ThisAttempt
from .children import Children
from .decisions import End
from .job import OWN, SETUP, job_of
from .rules import read_rules
from .texts import number, warn

NOT_STARTED = 4


class Words(NamedTuple):
    verb: str
    run: str
    options: Dict[str, str]
    step: List[str]


def main(words: Sequence[str]) -> int:
    try:
        given = parse(words)
        if given.options.get("pid", str(os.getpid())) != str(os.getpid()):
            warn("{} runs Python in a process of its own, which gets none of Slurm's signals. ".format(sys.executable)
                 + "Name another interpreter in launch.host_python.")
            return NOT_STARTED
        attempt = prepare(given)
        attempt.start(float(given.options.get("awake", "0").replace(",", ".") or time.time()), setup_of(os.environ))
        attempt.meet()
        attempt.check_nodes()
        step = with_logs(given.step, attempt.job.logs)
    except Exception:
        traceback.print_exc()
        warn("a fault in the batch program: the attempt does not start. `clusterdp resume` goes on with the run.")
        return NOT_STARTED
    try:
        attempt.finish(attempt.run(step))
    except Exception as error:
        traceback.print_exc()
        why = "a fault in the batch program: {}: {}".format(type(error).__name__, error)
        said = why + ". What was saved is safe: `clusterdp resume {run}` goes on with it."
        attempt.ending.over(End("unknown", "failed", 75, {"reason": why}, said))


def parse(words: Sequence[str]) -> Words:
    """ValueError if they are not as above."""
    own, _, step = partition(list(words))
    if len(own) < 2 or own[0] != "run" or not step:
        raise ValueError("not the words of a script: {}".format(words))
    options = dict(word[2:].partition("=")[::2] for word in own[2:])
    return Words(own[0], own[1], options, step)


def partition(words: List[str]) -> "tuple[List[str], str, List[str]]":
    i = words.index("--") if "--" in words else len(words)
    return words[:i], "--", words[i + 1 :]


def prepare(given: Words) -> ThisAttempt:
    environ = environment()
    # Slurm's daemons write local time by the clock of the host, and not by the submitter's.
    os.environ.pop("TZ", None)
    time.tzset()
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    job = job_of(given.run, given.options.get("script") or os.path.join(given.run, "job.sbatch"), os.environ)
    for name in OWN:
        environ.pop(os.fsencode(name), None)
    return ThisAttempt(job, read_rules(folder), Children(environ))


def environment() -> Dict[bytes, bytes]:
    """What the script has exported, byte for byte: Python adds LC_CTYPE to its own under LANG=C."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(entry.partition(b"=")[::2] for entry in entries if entry)


def setup_of(environ: Mapping[str, str]) -> Setup:
    """What launch.setup came to, as the script has noted it."""
    failed, code, errors = (environ.get(name, "") for name in SETUP)
    return Setup(failed, number(code) or 0, errors.rstrip("\n"))


def with_logs(step: Sequence[str], logs: str) -> List[str]:
    """{logs} is this attempt's folder of logs: in srun's own options alone, where % begins a pattern."""
    words = list(step)
    for i, word in enumerate(words[1:], 1):
        if not word.startswith("-"):
            break
        words[i] = word.replace("{logs}", logs.replace("%", "%%"))
    return words
