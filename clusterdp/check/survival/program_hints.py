"""Yields hints about the program's own text: its saves, ports, devices and paths. Faults that only a run shows are left
to `clusterdp rehearse`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterdp.check.finding import Finding
from clusterdp.check.program import CodePlace, ProgramText
from clusterdp.check.program.command_words import missing_program
from clusterdp.check.program.shell_lines import fixed_ports
from clusterdp.check.subject import Subject
from clusterdp.check.survival.launchers import launcher_of
from clusterdp.wording import did_you_mean

LOADS_BY_THEMSELVES = frozenset(
    {"lightning", "pytorch_lightning", "composer", "transformers", "deepspeed", "clusterdp"}
)
# Libraries that initialize the process group by themselves
FORM_GROUPS = LOADS_BY_THEMSELVES | frozenset(
    "accelerate colossalai fairscale fastai horovod ignite lightning_fabric megatron mmengine mpi4py ray trl "
    "ultralytics".split()
)
# Folders that exist on every node by themselves, and that this machine does not check
SYSTEM = ("/dev/", "/proc/", "/sys/", "/etc/", "/usr/", "/opt/")
OF_ONE_NODE = ("/tmp/", "/dev/shm/", "/var/tmp/", "/scratch/local/", "/local/", "/localscratch/", "$TMPDIR")
# Names of paths that the next attempt needs, unlike paths of staged or cached files
KEPT = re.compile(
    r"^(?!.*(?:cache|data|stag)).*(?:ckpt|checkpoint|model|\bstate|\blast|\bbest|runs?\b|logs?\b|\bout|result)", re.I
)
NOT_ELSEWHERE = "the next attempt may run on another node, which does not have it"


def program_findings(subject: Subject) -> Iterator[Finding]:
    program, kind = subject.program, subject.spec.kind
    yield from _of_command(subject)
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
    yield from _of_resuming(subject)
    yield from _of_paths(subject)


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
            program.fixed_devices if _sees_several_gpus(subject) else [],
            "all ranks of a node use this one GPU",
            f"{subject.spec.ranks_per_node} ranks share its memory, and the others are idle",
            "Write f\"cuda:{os.environ['LOCAL_RANK']}\".",
        ),
        (
            program.first_gpus if kind != "entry" and _sees_several_gpus(subject) else [],
            "all ranks of a node use its first GPU, because none is chosen by local rank",
            f"{subject.spec.ranks_per_node} ranks share its memory, and the others are idle",
            "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first.",
        ),
        (
            program.trains_anew if kind != "entry" and not program.resumes and program.complete else [],
            "the Trainer starts from scratch in each attempt",
            "after a preemption or a time-out it is at step 0 again",
            "Write trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir)).",
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


def _of_no_program(subject: Subject) -> Iterator[Finding]:
    config, spec = subject.config, subject.spec
    if spec.kind != "command" or config.launch.container.image or config.launch.setup:
        return
    if name := missing_program(spec.command, spec.submit_dir):
        what = f"there is no {name} in {spec.submit_dir}"
        there = [str(path.relative_to(spec.submit_dir)) for path in spec.submit_dir.glob(f"*{Path(name).suffix}")]
        remedy = did_you_mean(name, there, "Correct it, or submit from the folder that has it.")
        yield Finding("warning", "command", what, "the job ends at once: can't open file", remedy)
        return
    name, is_elsewhere = spec.command[0], config.launch.modules or "PATH" in config.launch.env
    if "/" not in name and not is_elsewhere and shutil.which(name) is None:
        why = "the job ends at once, unless the nodes have it"
        remedy = "Correct it, or load it in launch.setup or launch.modules."
        yield Finding("warning", "command", f"there is no program {name} on the PATH here", why, remedy)


def _sees_several_gpus(subject: Subject) -> bool:
    resources, launch = subject.config.resources, subject.config.launch
    given = {*resources.extra, *launch.env, *(word.partition("=")[0] for word in subject.spec.command)}
    apart = resources.gpus_per_task or given & {"gpu-bind", "gpus-per-task", "CUDA_VISIBLE_DEVICES"}
    return min(subject.spec.ranks_per_node, subject.gpus_per_node) > 1 and not apart


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


def _of_resuming(subject: Subject) -> Iterator[Finding]:
    program, kind = subject.program, subject.spec.kind
    assert program is not None
    unknown = kind == "entry" or not program.complete or program.libraries & LOADS_BY_THEMSELVES
    if unknown or program.resumes or not program.saves:
        return
    what = f"{program.files[0].name} saves, and nothing in it loads a state"
    why = "after a preemption or a time-out it starts again from step 0"
    place = program.saves[0]
    yield Finding("hint", kind, what, why, "Load the last save when it begins.", subject.where(place))


def _of_paths(subject: Subject) -> Iterator[Finding]:
    program = subject.program
    assert program is not None
    if subject.config.launch.container.image:
        return
    written = [use for use in program.opened if use.written]
    kept = [use for use in written if KEPT.search(use.path.removeprefix("$TMPDIR")) or use.place in program.saves]
    on_a_node = [use for use in kept if use.path.startswith(OF_ONE_NODE) and not program.copies_files]
    remedy = "Write to a shared file system."
    yield from _hint(subject, on_a_node, "writes to the node's own disk", NOT_ELSEWHERE, remedy)
    elsewhere = (*SYSTEM, *OF_ONE_NODE)
    missing = [
        use for use in written if use.is_absolute and not use.path.startswith(elsewhere) and not _is_there(use.path)
    ]
    why = "it is not there on this machine, and may not be on the nodes"
    yield from _hint(subject, missing, "writes to an absolute path", why, "Make it, or take it from a param.")


def _is_there(path: str) -> bool:
    """Returns whether the path, its folder or the parent of that folder exists, because the program may make the folder
    itself."""
    folder = Path(os.path.expanduser(path))
    above = [each for each in (folder, *folder.parents[:2]) if each != Path("/")]
    return any(os.path.exists(each) for each in above)
