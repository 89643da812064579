"""Yields hints about the command and the program's own text: ports, saves in place, and ranks that do not know each
other. All else is left to `clusterdp rehearse`, which tries what a text only suggests."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterdp.check.finding import Finding
from clusterdp.check.program import CodePlace, ProgramText
from clusterdp.check.program.command_words import missing_program, without_wrappers
from clusterdp.check.program.shell_lines import fixed_ports
from clusterdp.check.subject import Subject
from clusterdp.check.survival.launchers import launcher_of
from clusterdp.submission.render.script_spec import lines_of
from clusterdp.wording import did_you_mean

LOADS_BY_THEMSELVES = frozenset(
    {"lightning", "pytorch_lightning", "composer", "transformers", "deepspeed", "clusterdp"}
)
# Libraries that initialize the process group by themselves
FORM_GROUPS = LOADS_BY_THEMSELVES | frozenset(
    "accelerate colossalai fairscale fastai horovod ignite lightning_fabric megatron mmengine mpi4py ray trl "
    "ultralytics".split()
)
OF_ONE_NODE = ("/tmp/", "/dev/shm/", "/var/tmp/", "/scratch/local/", "/local/", "/localscratch/", "$TMPDIR")
# Names of paths that the next attempt needs, unlike paths of staged or cached files
KEPT = re.compile(
    r"^(?!.*(?:cache|data|stag)).*(?:ckpt|checkpoint|model|\bstate|\blast|\bbest|runs?\b|logs?\b|\bout|result)", re.I
)
SHELL_S = 10.0  # limit of the time in which bash reads a text
NOT_ELSEWHERE = "the next attempt may run on another node, which does not have it"


def program_findings(subject: Subject) -> Iterator[Finding]:
    program, kind = subject.program, subject.spec.kind
    yield from _of_command(subject)
    yield from _of_shell(subject)
    if kind == "command" and not subject.config.launch.container.image and not subject.config.launch.setup:
        yield from _of_start(subject)
    if program is None:
        yield from _of_no_program(subject)
        return
    for place in program.unparsed:
        why = "this interpreter cannot run it, and check has not read it"
        remedy = "Correct it, unless the job has another Python."
        yield Finding("hint", kind, f"not valid Python: {place.text}", why, remedy, subject.where(place))
    for places, what, why, remedy in _kinds(subject, program):
        in_force = [each for each in places if not is_given(each, subject.spec.command)]
        yield from _hint(subject, in_force, what, why, remedy)
    yield from _of_ranks(subject)


def _kinds(subject: Subject, program: ProgramText) -> tuple[tuple[Sequence[CodePlace], str, str, str], ...]:
    """Returns (places, what, why, remedy) for each kind of hint."""
    kind = subject.spec.kind
    return (
        (
            program.fixed_ports,
            "the port is hard-coded",
            "two jobs on one node would use the same port, and the second cannot listen",
            "Take MASTER_PORT from the environment: each attempt has its own.",
        ),
        (
            program.saves_in_place if kind != "entry" else [],
            "a save writes in place, under the final name",
            "a kill during the write leaves a truncated file there",
            "Save under a temporary name, then call os.replace().",
        ),
        (
            program.collective_in_handler if kind != "entry" else [],
            "a collective in a signal handler",
            "ranks receive the signal at different points of their step, and the collective hangs",
            "Set a flag, and agree on it between steps.",
        ),
    )


def is_given(place: CodePlace, command: Sequence[str]) -> bool:
    """Returns whether the place is the default of an option that the command sets."""
    options = {f"--{name}" for name in re.findall(r"--([\w-]+)", place.text)} if "add_argument" in place.text else set()
    return any(word.partition("=")[0] in options for word in command)


def _of_command(subject: Subject) -> Iterator[Finding]:
    """Yields findings for words of a command, such as `accelerate launch --main_process_port 29501` or `python train.py
    --out /tmp/run`."""
    for _, text in fixed_ports(shlex.join(subject.spec.command)):
        why = "two jobs on one node would use the same port, and the second cannot listen"
        yield Finding("hint", "command", f"the port is hard-coded: {text[:80]}", why, "Leave it to the job.")
    before = ""
    for word in subject.spec.command[1:]:
        value = word.rpartition("=")[2]
        if value.startswith(OF_ONE_NODE) and KEPT.search(f"{before} {word}"):
            remedy = "Name a folder on a shared file system."
            yield Finding("hint", "command", f"{value} is on the node's own disk", NOT_ELSEWHERE, remedy)
        before = word if word.startswith("-") else ""


def _of_shell(subject: Subject) -> Iterator[Finding]:
    """Yields a finding for each text that bash itself cannot read. With -n, bash runs no command."""
    for key, given in (("script", subject.config.script), ("launch.setup", subject.config.launch.setup)):
        try:
            done = subprocess.run(
                ["bash", "-n"], input=lines_of(given, key), capture_output=True, text=True, timeout=SHELL_S
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode:
            said = done.stderr.partition("\n")[0].removeprefix("bash: ")
            yield Finding("error", key, f"bash cannot read it: {said}", "the job ends at once", "Correct it.")


def _of_start(subject: Subject) -> Iterator[Finding]:
    """Yields a finding if the command's first word is not a program that can be started."""
    spec, launch = subject.spec, subject.config.launch
    name = [*without_wrappers(spec.command), *spec.command][0]
    is_elsewhere = spec.is_torchrun or launch.modules or "PATH" in launch.env
    file = spec.submit_dir / name
    if "/" in name and file.is_file() and not os.access(file, os.X_OK):
        remedy = f"chmod +x {name}, or name the program that reads it: python {name}"
        yield Finding(
            "warning", "command", f"{name} is not executable", "the job ends: Permission denied", f"{remedy}."
        )
    elif "/" not in name and not is_elsewhere and shutil.which(name) is None:
        why = "the job ends at once, unless the nodes have it"
        remedy = "Correct it, or load it in launch.setup or launch.modules."
        if not missing_program(spec.command, spec.submit_dir):
            yield Finding("warning", "command", f"there is no program {name} on the PATH here", why, remedy)


def _of_no_program(subject: Subject) -> Iterator[Finding]:
    config, spec = subject.config, subject.spec
    if spec.kind != "command" or config.launch.container.image or config.launch.setup:
        return
    if name := missing_program(spec.command, spec.submit_dir):
        what = f"there is no {name} in {spec.submit_dir}"
        there = [str(path.relative_to(spec.submit_dir)) for path in spec.submit_dir.glob(f"*{Path(name).suffix}")]
        remedy = did_you_mean(name, there, "Correct it, or submit from the folder that has it.")
        yield Finding("warning", "command", what, "the job ends at once: can't open file", remedy)


def _hint(subject: Subject, places: Sequence[CodePlace], what: str, why: str, remedy: str) -> Iterator[Finding]:
    """Yields one finding for all places with the same kind of fault."""
    if not places:
        return
    others = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    said = f"{what}: {places[0].text[:80]}{others}"
    yield Finding("hint", subject.spec.kind, said, why, remedy, subject.where(places[0]))


def _of_ranks(subject: Subject) -> Iterator[Finding]:
    """Yields a finding for a program that was written for one GPU, and does not use its rank."""
    program, spec = subject.program, subject.spec
    assert program is not None
    unknown = spec.kind != "command" or not program.complete or program.libraries & FORM_GROUPS
    if unknown or subject.ranks == 1 or program.knows_ranks or not program.trains or launcher_of(spec.command):
        return
    what = f"{program.files[0].name} trains, and nothing in it forms a process group or reads RANK"
    why = f"each of {subject.ranks} ranks trains by itself: {subject.ranks} copies of the same, on all of the data"
    remedy = "Begin with the eleven lines of docs/eleven_lines.md, or ask for one rank: nodes: 1, tasks_per_node: 1."
    yield Finding("warning", "command", what, why, remedy, subject.where(program.trains[0]))
