"""Yields findings about the signals with which Slurm stops a job: launch.signal, shells between Slurm and the program,
and the program's handlers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.program.shell_lines import commands_of
from clusterdp.check.subject import Subject
from clusterdp.check.survival.launchers import launcher_of
from clusterdp.check.survival.preemption import preemption_of
from clusterdp.wording import duration

LOOKS_EVERY_S = 30.0  # seconds between two checks of time limits by Slurm
HANDLED_BY_ENTRY = ("TERM", "USR2")
# Libraries whose launcher or plugin handles signals, which the program's text may not show
HANDLE_BY_THEMSELVES = frozenset({"lightning", "pytorch_lightning", "composer", "ignite", "submitit", "clusterdp"})
NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "1": "HUP", "2": "INT"}
FUNCTION = re.compile(r"^(?:function\s+)?[\w-]+\s*(?:\(\))?\s*\{.*?^\}", re.M | re.S)
BLOCK_ENDS = frozenset({"}", ")", "done", "fi", "esac"})


def signal_findings(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    yield from _of_lead(subject)
    yield from _of_handlers(subject, cluster)
    yield from _of_shells(subject)
    yield from _of_template(subject)


def _warning(subject: Subject) -> tuple[str, float] | None:
    """Returns signal and seconds of launch.signal, such as (`USR2`, 90.0)."""
    match = re.fullmatch(r"(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d+))?", subject.config.launch.signal or "")
    return (NUMBERS.get(match[1], match[1]), float(match[2] or 60)) if match else None


def _of_lead(subject: Subject) -> Iterator[Finding]:
    """Yields a finding if launch.signal comes too early or too late. Entry jobs are not checked, because they know
    their time limit themselves."""
    warning = _warning(subject)
    if warning and subject.time_s is not None and warning[1] >= subject.time_s:
        what = f"{subject.config.launch.signal}: {duration(warning[1])} before a limit of {duration(subject.time_s)}"
        why = "Slurm sends it as soon as the job has begun"
        remedy = f"Write {warning[0]}@{max(60, round(subject.time_s / 10))} or less."
        yield Finding("warning", "launch.signal", what, why, remedy)
    elif warning and warning[1] <= LOOKS_EVERY_S and subject.spec.kind != "entry":
        what = f"{subject.config.launch.signal}: {duration(warning[1])} before the time limit"
        why = "Slurm looks every 30 s: it comes up to that much early or late, and may leave no time at all"
        yield Finding("warning", "launch.signal", what, why, f"Write {warning[0]}@60 or more.")


def _of_handlers(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    warning, key = _warning(subject), "launch.signal"
    if subject.spec.kind == "entry":
        if warning and warning[0] not in HANDLED_BY_ENTRY:
            what = f"{warning[0]} is not handled in entry jobs, which stop at TERM and USR2"
            why = "the ranks die of it before each time limit"
            yield Finding("error", key, what, why, "Leave it out, or write USR2.")
        return
    program = subject.program
    if program is None or not program.complete or program.libraries & HANDLE_BY_THEMSELVES:
        return
    if warning and warning[0] != "KILL" and f"SIG{warning[0]}" not in program.handled and program.files:
        what = f"{warning[0]} is sent, and nothing in {program.files[0].name} handles it"
        why = f"the program dies of it {duration(warning[1])} before each time limit, without a save"
        yield Finding("warning", key, what, why, "Leave it out, or handle it in the program.")
    elif warning and program.exits_zero_in_handler:
        place = program.exits_zero_in_handler[0]
        what = f"after {warning[0]} the program ends with 0: {place.text}"
        why = "before the time limit, an end with 0 means that the run is done: it is not requeued"
        yield Finding("warning", key, what, why, "sys.exit(75) there.", subject.where(place))
    if "torch" in program.libraries and not program.handles_term:
        preemption = preemption_of(subject, cluster)
        if preemption or not cluster.partitions:
            form = f"{preemption.in_words()}. " if preemption else ""
            what = f"nothing in {program.files[0].name} handles SIGTERM"
            why = f"{form}A preempted or timed-out job loses all since its last save"
            yield Finding("hint", subject.spec.kind, what, why, "Save at SIGTERM, or see docs/eleven_lines.md.")


def _of_shells(subject: Subject) -> Iterator[Finding]:
    """Yields a finding if the command of srun is a shell: TERM ends the shell, and with it the task."""
    program = subject.program
    for place in program.shells if program else []:
        what = "this shell waits for the program and has neither exec nor a trap"
        why = "it dies of SIGTERM, and the step ends while the program saves: that is killed, or left behind"
        remedy = f"exec {place.text}"
        if not place.is_last:
            remedy = f"trap 'kill -TERM $pid' TERM; {place.text} & pid=$!; wait $pid; wait $pid"
        yield Finding("hint", subject.spec.kind, what, why, remedy, subject.where(place))


def _of_template(subject: Subject) -> Iterator[Finding]:
    """Yields a finding for a user's template that runs srun in the foreground. clusterdp's own templates run srun in
    the background."""
    if not subject.config.launch.template or not re.search(r"^#SBATCH --signal=[^\n]*B:", subject.script, re.M):
        return
    commands = [*commands_of(FUNCTION.sub("", subject.script))]  # leaves out functions, which may run in the background
    starts = [at for at, command in enumerate(commands) if launcher_of(command.words) == "srun"]
    if not starts or commands[starts[-1]].words[0] == "exec":
        return
    of_ranks, rest = commands[starts[-1]], commands[starts[-1] + 1 :]
    if of_ranks.in_background or any(each.in_background and each.words[0] in BLOCK_ENDS for each in rest):
        return
    what = "--signal=B: goes to the batch shell, which waits for an srun in the foreground"
    why = "bash runs its trap only when srun has ended: nobody stops in time"
    yield Finding("warning", "launch.template", what, why, "Write `srun ... & wait $!`.")
