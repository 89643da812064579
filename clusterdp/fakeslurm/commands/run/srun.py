"""srun: starts a step in the job from which srun is called, or else in a new job. The connection to srun goes to the
step's slurmstepd.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...core import constraints, error_texts
from ...core.error_texts import CommandDone, Refusal
from ...core.model import JobRecord, Step
from ...slurmctld import job_end, multi_prog
from ...slurmctld.step_layout import (
    StepBusy,
    StepLost,
    StepMistake,
    StepRefused,
    StepRequest,
    check,
    layout,
    settle,
    without_lost_nodes,
)
from ..options.getopt import GetoptParser
from ..options.job_desc_of_options import BESIDE_PER_GPU
from ..options.option_values import BAD
from ..options.options import SRUN_ENVIRON, options_of
from ..options.parsed_options import ParsedOptions
from .allocation import (
    ENDING,
    AllocationTexts,
    allocate,
    change_or_signal,
    desc_for,
    show_options,
    test_only,
)
from .srun_plan import plan_of, request_of

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.daemon import Daemon

HELP = (
    "Usage: srun [OPTIONS(0)... [executable(0) [args(0)...]]] [ : [OPTIONS(N)...]] executable(N) [args(N)...]\n\n"
    "Parallel run options:"
)
TEXTS = AllocationTexts(
    "srun",
    "srun: error: Unable to allocate resources: ",
    pending=("job {} queued and waiting for resources",),
    interrupted=("srun: Job allocation {} has been revoked",),
    cancelled=(
        "srun: Job has been cancelled",
        f"srun: error: Unable to allocate resources: {error_texts.ALREADY_DONE}",
    ),
)

# MPI types for --mpi that are refused, as by a Slurm without the libraries of these types.
UNAVAILABLE_MPI = ("pmix", "pmix_v1", "pmix_v2", "pmix_v3", "pmix_v4", "pmix_v5", "cray_shasta")

PTY_TASK = str(Path(__file__).parents[2] / "slurmstepd/pty_task.py")
LAUNCH_FAILED = 233  # exit status of srun if a task cannot be launched


@dataclass
class Component:
    """A component of the command line: a program and its options. `srun ONE : OTHER` has two components."""

    options: ParsedOptions
    given: dict[str, str]  # options on the command line
    program: list[str]
    group: int  # offset of the component in the heterogeneous job, else 0
    programs: list[tuple[str, ...]] = field(default_factory=list)  # for --multi-prog: the words of each task's program
    job: JobRecord = None  # type: ignore[assignment]  # job, request and step are set later
    request: StepRequest = None  # type: ignore[assignment]
    step: Step = None  # type: ignore[assignment]


async def run(client: Connection, daemon: Daemon) -> int:
    try:
        return await _run(client, daemon)
    except Refusal as refusal:
        code = client.environ.get("SLURM_EXIT_ERROR", "")
        refusal.exit_code = int(code) if code.isdigit() else refusal.exit_code
        raise


async def _run(client: Connection, daemon: Daemon) -> int:
    components, release = _components(client, daemon), daemon.shape.settings.release
    first = components[0]
    _check_options(client, first.options)
    if "verbose" in first.options:
        show_options(client, first.options)
    number = first.options.get("jobid") or client.environ.get("SLURM_JOB_ID") or client.environ.get("SLURM_JOBID")
    if number is None:
        descs = [
            desc_for(client, daemon, each.options, TEXTS, os.path.basename(each.program[0])) for each in components
        ]
        for desc, component in zip(descs, components, strict=True):
            desc.command = component.program[0]
        if "test-only" in first.options:
            return test_only(client, daemon, descs[0], "srun")
        job = await allocate(client, daemon, first.options, descs, TEXTS)
        if "verbose" in first.options:
            hosts, cpus = ",".join(f"`{node}'" for node in [", ".join(job.nodes)]), len(job.nodes)
            client.error(f"srun: jobid {job.id}: nodes({cpus}):{hosts}, cpu counts: {job.shares[0].cpus}(x{cpus})")
        client.environ.pop("SLURM_NTASKS", None)
    else:
        try:
            job = _job(daemon, number)
        except Refusal:
            for component in components:  # srun checks the options of its steps before it makes a job
                request = request_of(component, client.pid, release)
                for warning in settle(request, [1], release):
                    client.error(warning)
            raise
        if "test-only" in first.options:
            return 0
    if "pty" in first.options and client.terminal:
        first.options.add([("unbuffered", "")])
        first.program = [sys.executable, "-S", "-E", PTY_TASK, *first.program]
    elif "pty" in first.options:
        client.error("srun: error: ioctl(TIOCGWINSZ): Inappropriate ioctl for device")
        client.error("srun: error: Not using a pseudo-terminal, disregarding --pty option")
    if "hint" in first.options and release.hint_needs_binding:
        client.error("srun: cluster configuration lacks support for cpu binding")
    _assign(daemon, job, components)
    for component in components:
        component.request = request_of(component, client.pid, release, _hosts(client, component.options))
        component.request.submit_line = " ".join(["srun", *client.words])
    await _begin(client, daemon, components, own_job=number is None)
    return 0


# -- the command line --


def _check_options(client: Connection, options: ParsedOptions) -> None:
    if _is_arbitrary(client, options) and not ("SLURM_HOSTFILE" in client.environ and _leaves_layout_open(options)):
        words = "is supported by this fake cluster only with SLURM_HOSTFILE and --ntasks, and without --nodes"
        raise Refusal(f"srun: error: --distribution=arbitrary {words} and --ntasks-per-node", BAD)
    if "parsable" in options:  # --async is never given, because it is refused
        raise Refusal("srun: error: --parsable requires --async.")


def _is_arbitrary(client: Connection, options: ParsedOptions) -> bool:
    return (options.get("distribution") or "").startswith("arbitrary") or "SLURM_HOSTFILE" in client.environ


def _leaves_layout_open(options: ParsedOptions) -> bool:
    """Whether the options of a step name its number of tasks, and leave the rest to the file of hosts."""
    return "ntasks" in options and not any(name in options for name in ("nodes", "ntasks-per-node"))


def _hosts(client: Connection, options: ParsedOptions) -> list[str]:
    """Returns the node of each task in the file SLURM_HOSTFILE; empty without --distribution=arbitrary."""
    if not _is_arbitrary(client, options):
        return []
    try:
        hosts = Path(client.cwd, client.environ["SLURM_HOSTFILE"]).read_text().split()
    except OSError:
        hosts = []
    tasks = options.number("ntasks") or 0
    if len(hosts) < tasks:
        raise Refusal("srun: error: SLURM_HOSTFILE has too few hosts", BAD)
    return hosts[:tasks]


def _components(client: Connection, daemon: Daemon) -> list[Component]:
    """Returns the components of the command line. A component with several groups in --het-group is returned once for
    each group."""
    parser, found = GetoptParser("srun", options_of("srun", daemon.shape.settings.release), BAD), list[Component]()
    parts = _split(parser, client.words)
    before = ParsedOptions("srun", daemon.shape.settings.release)
    for number, (line, program) in enumerate(parts):
        given = dict(line)
        if "help" in given or "usage" in given:
            client.print(HELP)
            raise CommandDone
        if "version" in given:
            client.print(f"slurm-wlm {daemon.shape.settings.slurm_version}")
            raise CommandDone
        options = before.after()
        groups = _groups(given.get("het-group"), number)
        for group in groups:
            mine = ParsedOptions("srun", options.release, dict(options.values))
            mine.add(_from_environ(client.environ, group if "SLURM_HET_SIZE" in client.environ else None))
            if daemon.shape.settings.release.tres_per_task and "SLURM_TRES_PER_TASK" in client.environ:
                mine.add([("tres-per-task", client.environ["SLURM_TRES_PER_TASK"])])
                if "ntasks-per-gpu" in mine or "ntasks-per-gpu" in given:
                    raise Refusal(f"srun: fatal: SLURM_TRES_PER_TASK {BESIDE_PER_GPU}")
            mine.add(line)
            _check_mpi(client, mine.get("mpi"))
            # A component without a program runs the program of the next component that has one.
            words = program or next((words for _, words in parts[number:] if words), [])
            if not words:
                raise Refusal("srun: fatal: No command given to execute.")
            found.append(Component(mine, given, words, group))
        before = found[-1].options
    return found


def _check_mpi(client: Connection, kind: str | None) -> None:
    if kind == "list":
        client.print("MPI plugin types are...\n\tnone\n\tpmi2")
        raise CommandDone
    if kind in UNAVAILABLE_MPI:
        raise Refusal(f"srun: error: Invalid MPI type '{kind}', --mpi=list for acceptable types")


def _split(parser: GetoptParser, words: list[str]) -> list[tuple[list[tuple[str, str]], list[str]]]:
    """Returns (options, program) of each component. A colon as a word of its own separates components."""
    parts: list[tuple[list[tuple[str, str]], list[str]]] = []
    while True:
        line, program = parser.parse(words, permute=False)
        if ":" not in program:
            return [*parts, (line, program)]
        at = program.index(":")
        parts.append((line, program[:at]))
        words = program[at + 1 :]


def _groups(text: str | None, number: int) -> list[int]:
    if text is None:
        return [number]
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            invalid = f"srun: error: _parse_single_range: Invalid range: `{part}'"
            raise Refusal(f"{invalid}\nsrun: error: Invalid --het-group value: {text}")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return sorted(set(found))


def _from_environ(variables: dict[str, str], group: int | None) -> list[tuple[str, str]]:
    """Returns the options that environment variables set. A variable with the suffix of the component wins over a
    variable without suffix."""
    found = [(option, variables[name]) for name, option in SRUN_ENVIRON.items() if name in variables]
    if group is not None:
        names = {f"{name}_HET_GROUP_{group}": option for name, option in SRUN_ENVIRON.items()}
        found += [(option, variables[name]) for name, option in names.items() if name in variables]
    planes = ("distribution", f"plane={variables.get('SLURM_DIST_PLANESIZE', '')}")
    return [planes if pair == ("distribution", "plane") else pair for pair in found]


# -- the job --


def _job(daemon: Daemon, number: str) -> JobRecord:
    if not number.isdigit():
        raise Refusal(f'srun: error: Invalid numeric value "{number}" for --jobid.')
    job = daemon.model.jobs.get(int(number))
    if job and not job.state.final and not job.completing and job.shares:
        return job
    why = error_texts.INVALID_JOB_ID if job is None else "Job is pending execution" if job.waits else None
    text = f"Unable to confirm allocation for job {number}: {why}" if why else f"Slurm job {number} has expired"
    check_it = f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {number}"
    raise Refusal(f"srun: error: {text}\n{check_it}")


def _assign(daemon: Daemon, job: JobRecord, components: list[Component]) -> None:
    """Assigns a component of the job to each component of the step."""
    jobs = daemon.model.components(job)
    for component in components:
        most = len(jobs) - 1
        if component.group > most and "het-group" in component.given:
            text = f"Requested het-group offset exceeds highest hetjob index ({component.group} > {most})"
            raise Refusal(f"srun: error: {text}")
        if component.group > most:
            text = f"Attempt to run a job step with het group value of {component.group}"
            raise Refusal(f"srun: error: {text}, but the job allocation has maximum value of {most}")
        component.job = jobs[component.group] if len(jobs) > 1 else job


# -- the step --


async def _begin(client: Connection, daemon: Daemon, components: list[Component], own_job: bool) -> None:
    first = components[0]
    try:
        await _create(client, daemon, components)
        _check_slurmds(daemon, components)
        plan = plan_of(client, daemon, components)
        await client.flush()
    except Exception:  # any refusal, also the loss of srun's connection, ends the step
        job_end.srun_gave_up(daemon.controller, first.job, first.step, own_job)
        raise
    daemon.stepds.spawn(first.job, first.step, plan, client.hand_over())


async def _create(client: Connection, daemon: Daemon, components: list[Component]) -> None:
    """Creates the step in its job. Before that, waits for CPUs that other steps of the job use."""
    release = daemon.shape.settings.release
    for component in components:
        failed = _failed(component)
        try:
            warnings = without_lost_nodes(component.request, component.job)
            warnings += settle(component.request, [share.cpus for share in component.job.shares], release)
            for warning in warnings:
                client.error(warning)
            check(component.request, component.job, release)
        except StepMistake as mistake:
            raise Refusal(str(mistake)) from None
        except StepRefused as refused:
            if isinstance(refused, StepLost):
                daemon.model.components(component.job)[0].next_step += 1
            raise Refusal(refused.first + failed + str(refused)) from None
        features = component.options.get("constraint")
        if features and not constraints.known(features, [node.features for node in daemon.model.nodes.values()]):
            raise Refusal(failed + error_texts.INVALID_FEATURE)
        if "multi-prog" in component.options:
            component.programs = await _programs(client, component)
    queue = daemon.waiting_steps.setdefault(components[0].job.id, [])
    queue.append(components[0].request)
    try:
        waited = await _when_free(client, daemon, components)
    finally:
        queue.remove(components[0].request)
    first = components[0]
    if waited:
        client.error(f"srun: Step created for StepId={first.job.id}.{first.step.id}")
    daemon.model.components(first.job)[0].next_step += 1
    for component in components:
        if component is not first:
            component.step.runs_in = first.job.id
        component.job.steps.append(component.step)
    for component in reversed(components):  # the first component last, because it has the slurmstepd
        daemon.controller.changed(component.job)
    leader = daemon.model.components(first.job)[0]
    if leader not in [component.job for component in components]:
        daemon.controller.changed(leader)


def _check_slurmds(daemon: Daemon, components: list[Component]) -> None:
    """Raises Refusal if the slurmd of a node of the step was killed. A real srun tries to connect for 10 s before this
    error."""
    lost = "Communication connection failure"
    for step in (component.step for component in components):
        if dead := next((node for node in step.nodes if daemon.model.nodes[node].slurmd_killed), None):
            launch = f"Task launch for StepId={components[0].job.id}.{step.id} failed on node {dead}: {lost}"
            said = f"srun: error: {launch}\nsrun: error: Application launch failed: {lost}\nsrun: Job step aborted"
            raise Refusal(said, LAUNCH_FAILED)


def _failed(component: Component) -> str:
    return f"srun: error: Unable to create step for job {component.job.id}: "


async def _when_free(client: Connection, daemon: Daemon, components: list[Component]) -> bool:
    """Lays out the step on all components when enough CPUs are free. Returns whether the step had to wait for CPUs."""
    waited, first = False, components[0]
    while True:
        if any(each.job.completing or not each.job.shares for each in components):
            raise Refusal(_failed(first) + "Job/step already completing or completed")
        number = str(daemon.model.components(first.job)[0].next_step)
        now, release = daemon.controller.clock(), daemon.shape.settings.release
        try:
            for component in components:
                component.step = layout(component.request, component.job, number, now, release)
            return waited
        except StepBusy:
            if "immediate" in first.options:
                raise Refusal(_failed(first) + error_texts.NODES_BUSY) from None
            if not waited:
                text = "step creation temporarily disabled, retrying (Requested nodes are busy)"
                client.error(f"srun: Job {first.job.id} {text}")
                await client.flush()
            waited = True
            if await change_or_signal(client, daemon) in ENDING:
                client.error("srun: Cancelled pending job step with signal 2")
                raise CommandDone(1) from None


async def _programs(client: Connection, component: Component) -> list[tuple[str, ...]]:
    name = component.program[0]
    content = await client.read_file(os.path.join(client.cwd, name))
    if isinstance(content, int):
        raise Refusal(f"srun: error: Could not open multi_prog config file {name}")
    try:
        return multi_prog.read(content.decode("utf-8", "surrogateescape"), name, component.request.tasks or 1)
    except multi_prog.BadFile as mistake:
        raise Refusal("\n".join(f"srun: error: {line}" for line in str(mistake).split("\n"))) from None
