"""main: the command line of the batch program.

    run RUN OPTION... -- STEP...    the whole attempt, in the batch process itself; STEP: the srun command of the ranks

Verbs for the script that submitit writes, which has its own srun:

    begin RUN OPTION...             before srun; prints lines for the shell
    end RUN --code=CODE [--term]    after srun
    watch RUN                       beside srun, if notify.on has `hang`

Verb of the keepers (see keeper.py), on another node than the script's:

    rescue RUN --lost=NODE OPTION...    if Slurm has taken the script's node out of the job
"""

import os
import sys
import time
from functools import partial
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from .act.step import HANG_S
from .attempt import Setup, ThisAttempt
from .decide.decisions import End
from .files.job import OWN, SETUP, job_of
from .files.record import one_line
from .files.rules import read_rules
from .files.texts import number, warn, warn_of_fault
from .processes.children import Children
from .rescue import rescue

NOT_STARTED = 4
AT_EXIT_FD = 9
AT_EXIT_S = 10


class Words(NamedTuple):
    verb: str
    run: str
    options: Dict[str, str]
    step: List[str]


def main(words: Sequence[str]) -> int:
    """Returns or exits with the code of the batch script."""
    try:
        given = parse(words)
        attempt = prepare(given)
    except Exception as error:
        return not_started(error)
    try:
        return VERBS[given.verb](attempt, given)
    finally:
        attempt.reserve.close()
        attempt.keepers.close()
        attempt.reserve.tidy()
        attempt.children.wait_for_forks()
        run_traps(given.options)


def run(attempt: ThisAttempt, given: Words) -> int:
    if given.options.get("pid", "") != str(os.getpid()):
        said = "{} runs Python in a process of its own, which gets none of Slurm's signals. Name another in"
        warn(said.format(sys.executable) + " launch.host_python.")
        return NOT_STARTED
    try:
        attempt.start(given.options.get("awake", ""), setup_of(os.environ, given.step))
        attempt.meet()
        attempt.check_nodes()
    except Exception as error:
        return not_started(error)
    while True:
        finished(attempt, partial(attempt.run, given.step))
        try:
            attempt = attempt.restarted()
        except Exception as error:
            return not_started(error)


def begin(attempt: ThisAttempt, given: Words) -> int:
    """Prints for the shell: the exports of the ranks, or `exit`."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the shell evaluates stdout, and the output of a notify.command must not reach it
    try:
        attempt.start(given.options.get("awake", ""), setup_of(os.environ, ()))
        attempt.meet()
        said = "".join("export {}={}\n".format(name, quoted(value)) for name, value in attempt.exported())
    except SystemExit as end:
        said = "exit {}\n".format(end.code)
    except Exception as error:
        said = "exit {}\n".format(not_started(error))
    os.write(answers, os.fsencode(said))
    return 0


def end(attempt: ThisAttempt, given: Words) -> int:
    """Acts on the end of srun. Option `term`: TERM has come while srun ran."""
    finished(
        attempt,
        lambda: attempt.came_back(setup_of(os.environ, ()), int(given.options["code"]), "term" in given.options),
    )
    return 0


def watch(attempt: ThisAttempt, given: Words) -> int:
    """Sends a message about a hang as soon as the hang is reported."""
    while not attempt.children.terms and not attempt.step.send_hang():
        attempt.children.sleep(HANG_S)
    return 0


def act_without_script(attempt: ThisAttempt, given: Words) -> int:
    return rescue(attempt, given.options["lost"])


VERBS = {"run": run, "begin": begin, "end": end, "watch": watch, "rescue": act_without_script}


def run_traps(options: Dict[str, str]) -> None:
    """Runs the EXIT trap that launch.setup has set. A child of the script waits for the end of its stdin, and then runs
    the trap."""
    pid = number(options.get("at-exit", ""))
    if not pid:
        return
    try:
        os.close(AT_EXIT_FD)
        for _ in range(AT_EXIT_S * 10):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.1)
    except OSError as error:  # the child's pid is unknown under an older bash
        warn("launch.setup: its trap on EXIT: {}".format(error.strerror))


def finished(attempt: ThisAttempt, work: Callable[[], int]) -> None:
    """Finishes the attempt, and returns if the next one follows in this allocation. If this program itself fails, the
    run loses one attempt at most, and `resume` continues it."""
    try:
        attempt.finish(work())
    except Exception as error:
        if attempt.ending.requeued:
            warn_of_fault(error, "The job is requeued.")
            raise SystemExit(0) from None
        why = one_line(warn_of_fault(error, "What was saved is safe: `clusterdp resume` goes on with the run."))
        attempt.ending.over(End("unknown", "failed", 75, {"reason": why}))


def not_started(error: Exception) -> int:
    warn_of_fault(error, "The attempt does not start; `clusterdp resume` goes on with the run.")
    return NOT_STARTED


def parse(words: Sequence[str]) -> Words:
    """Raises ValueError if the words do not have the form in the module's docstring."""
    own, step = parted(list(words))
    if len(own) < 2 or own[0] not in VERBS or bool(step) != (own[0] == "run"):
        raise ValueError("not the words of a script: {}".format(words))
    options = dict(word[2:].partition("=")[::2] for word in own[2:])
    return Words(own[0], own[1], options, step)


def parted(words: List[str]) -> Tuple[List[str], List[str]]:
    i = words.index("--") if "--" in words else len(words)
    return words[:i], words[i + 1 :]


def prepare(given: Words) -> ThisAttempt:
    environ = environment()
    # Slurm's daemons write local time in the time zone of the host, not of the submitter.
    os.environ.pop("TZ", None)
    time.tzset()
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    job = job_of(given.run, given.options.get("script") or os.path.join(given.run, "job.sbatch"), os.environ)
    for name in OWN:
        environ.pop(os.fsencode(name), None)
    rules = read_rules(folder)
    # As in the script: the request may have been changed since, by sbatch's user or scontrol.
    if os.environ.get("SLURM_JOB_NUM_NODES") and (rules.sizes or not rules.spare_nodes):
        rules = rules._replace(nodes=job.node_count - rules.spare_nodes)
    return ThisAttempt(job, rules, Children(environ))


def environment() -> Dict[bytes, bytes]:
    """Returns the variables that the script has exported, byte for byte, because Python adds LC_CTYPE under LANG=C."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(entry.partition(b"=")[::2] for entry in entries if entry)


def setup_of(environ: Mapping[str, str], step: Sequence[str]) -> Setup:
    """Returns what has failed before the step, as the script has recorded it. step: the words of the step, which must
    have a program: `bash -c ""` would end at once as if all were done."""
    failed, code, errors = (environ.get(name, "") for name in SETUP)
    if not failed and "-c" in step and step[step.index("-c") + 1] == "":
        failed = "the step has no program: a here-document of launch.template came out empty (is $TMPDIR or /tmp full?)"
    return Setup(failed, number(code) or NOT_STARTED, errors.rstrip("\n"))


def quoted(value: str) -> str:
    return "'" + value.replace("'", "'\"'\"'") + "'"
