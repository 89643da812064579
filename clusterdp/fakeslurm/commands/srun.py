"""srun: starts a step in the job it is called from, or makes a job of its own, and hands over to the supervisor."""

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from clusterdp.fakeslurm import ending, environ, refusals
from clusterdp.fakeslurm.asking import BAD, Asked, job_spec
from clusterdp.fakeslurm.conversation import Gone
from clusterdp.fakeslurm.getopt import Parser
from clusterdp.fakeslurm.model import Job, Step
from clusterdp.fakeslurm.options import SRUN, SRUN_ENVIRON
from clusterdp.fakeslurm.plan import StepPlan, Target
from clusterdp.fakeslurm.refusals import ControllerError, NoMore, Refusal
from clusterdp.fakeslurm.running import letters, step_tasks
from clusterdp.fakeslurm.shape import VERSION, host_name
from clusterdp.fakeslurm.stepping import Busy, StepMistake, StepRefused, StepRequest, check, layout, settle

if TYPE_CHECKING:
    from clusterdp.fakeslurm.conversation import Conversation
    from clusterdp.fakeslurm.daemon import Daemon

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PORT = 40000  # in variables that name one: nobody listens there


async def run(talk: "Conversation", daemon: "Daemon") -> int:
    try:
        return await _run(talk, daemon)
    except Refusal as refusal:
        code = talk.environ.get("SLURM_EXIT_ERROR", "")
        refusal.exit_code = int(code) if code.isdigit() else refusal.exit_code
        raise


async def _run(talk: "Conversation", daemon: "Daemon") -> int:
    line, program = Parser("srun", SRUN, BAD).parse(talk.words, permute=False)
    given = dict(line)
    if "help" in given or "usage" in given:
        talk.print("Usage: srun [OPTIONS...] executable [args...]")
        raise NoMore
    if "version" in given:
        talk.print(f"slurm-wlm {VERSION}")
        raise NoMore
    asked = Asked("srun")
    asked.add([(option, talk.environ[name]) for name, option in SRUN_ENVIRON.items() if name in talk.environ])
    asked.add(line)
    if not program:
        raise Refusal("srun: fatal: No command given to execute.")
    number = asked.get("jobid") or talk.environ.get("SLURM_JOB_ID") or talk.environ.get("SLURM_JOBID")
    if number is None:
        job = await _allocate(talk, daemon, asked, program)
    else:
        job = _job(daemon, number)
    request = _request(asked, given, program, talk.pid)
    step = await _create(talk, daemon, job, request, asked)
    plan = _plan(talk, daemon, job, step, request, asked, program)
    await talk.flush()
    daemon.supervisors.spawn(job, step, plan, talk.hand_over())
    return 0


def _job(daemon: "Daemon", number: str) -> Job:
    job = daemon.model.jobs.get(int(number)) if number.isdigit() else None
    if not job or job.over or not job.shares:
        text = "Unable to confirm allocation for job" if job is None else "Unable to create step for job"
        why = refusals.INVALID_JOB_ID if job is None else "Job/step already completing or completed"
        raise Refusal(f"srun: error: {text} {number}: {why}")
    return job


def _request(asked: Asked, given: dict[str, str], program: list[str], pid: int) -> StepRequest:
    nodes = asked.nodes()
    request = StepRequest(name=asked.get("job-name") if "job-name" in given else os.path.basename(program[0]), pid=pid)  # type: ignore[arg-type]
    request.nodes = nodes[0] if nodes else None
    request.nodes_on_command_line = "nodes" in given
    request.tasks, request.tasks_on_command_line = asked.number("ntasks"), "ntasks" in given
    request.tasks_per_node = asked.number("ntasks-per-node")
    request.cpus_per_task = asked.number("cpus-per-task") or 1
    request.nodelist, request.exclude = asked.hosts("nodelist"), asked.hosts("exclude")
    request.relative = asked.number("relative", 0)
    request.exact = "exact" in asked or "exclusive" in asked
    request.overlap, request.overcommit = "overlap" in asked, "overcommit" in asked
    request.distribution = asked.get("distribution")
    request.minutes = asked.minutes() or None if "time" in given else None
    gpus = asked.gpus()
    request.gpus_per_node, request.gpus_per_task, request.gpus = gpus.per_node, gpus.per_task, gpus.per_job
    request.no_gres = (asked.get("gres") or "").lower() == "none"
    if "gpus-per-node" in asked:
        request.gpu_options["TresPerNode"] = f"gres:gpu:{asked.get('gpus-per-node')}"
    return request


async def _create(talk: "Conversation", daemon: "Daemon", job: Job, request: StepRequest, asked: Asked) -> Step:
    """The step, registered with its job; waits for CPUs that other steps of the job use."""
    failed = f"srun: error: Unable to create step for job {job.id}: "
    try:
        for warning in settle(request, job):
            talk.error(warning)
        check(request, job)
    except StepMistake as mistake:
        raise Refusal(str(mistake)) from None
    except StepRefused as refused:
        raise Refusal(failed + str(refused)) from None
    queue = daemon.waiting_steps.setdefault(job.id, [])
    queue.append(request)
    try:
        step, waited = await _when_free(talk, daemon, job, request, asked, failed)
    finally:
        queue.remove(request)
    if waited:
        talk.error(f"srun: Step created for StepId={job.id}.{step.id}")
    job.next_step += 1
    job.steps.append(step)
    daemon.controller.changed(job)
    return step


async def _when_free(
    talk: "Conversation", daemon: "Daemon", job: Job, request: StepRequest, asked: Asked, failed: str
) -> tuple[Step, bool]:
    """The step, and whether it had to wait."""
    waited = False
    while True:
        if job.completing or not job.shares:
            raise Refusal(failed + "Job/step already completing or completed")
        try:
            return layout(request, job, str(job.next_step), daemon.controller.clock()), waited
        except Busy:
            if "immediate" in asked:
                raise Refusal(failed + refusals.NODES_BUSY) from None
            if not waited:
                talk.error(
                    f"srun: Job {job.id} step creation temporarily disabled, retrying (Requested nodes are busy)"
                )
                await talk.flush()
            waited = True
            if await change_or_signal(talk, daemon) in ENDING:
                talk.error("srun: Cancelled pending job step with signal 2")
                raise NoMore(1) from None


async def change_or_signal(talk: "Conversation", daemon: "Daemon") -> int | None:
    """Until some job changes (None), or until srun receives a signal; raises Gone if it is killed."""
    waits = [asyncio.ensure_future(daemon.change()), asyncio.ensure_future(talk.signal())]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return int(waits[1].result() or 0) if waits[1] in done else None
    finally:
        for wait in waits:
            wait.cancel()


def _plan(
    talk: "Conversation", daemon: "Daemon", job: Job, step: Step, request: StepRequest, asked: Asked, program: list[str]
) -> StepPlan:
    controller = daemon.controller
    variables = environ.of_srun(talk.environ, asked.get("export"))
    about_job = environ.of_job(job, controller.user, daemon.shape.name, str(controller.conf_path()))
    for name, value in about_job.items():
        if name not in ("ENVIRONMENT", "TMPDIR") and (job.spec.batch or name not in environ.IN_BATCH_JOBS_ONLY):
            variables.setdefault(name, value)
    about_step = environ.of_step(job, step, talk.umask, PORT)
    variables |= {
        name: value for name, value in about_step.items() if job.spec.batch or name not in environ.IN_BATCH_JOBS_ONLY
    }
    if job.spec.batch and job.shares and job.shares[0].gpus:
        variables.setdefault("SLURM_JOB_GPUS", ",".join(map(str, job.shares[0].gpus)))
    for name in (*environ.GPU_VARIABLES, "SLURM_GPUS_ON_NODE"):
        variables.pop(name, None)
    if "job-name" in asked and "SLURM_JOB_NAME" in variables:
        variables["SLURM_JOB_NAME"] = step.name
    stdout = _target(asked.get("output"), asked, job)
    return StepPlan(
        job=job.id,
        step=step.id,
        restart=job.restarts,
        name=step.name,
        nodes=tuple(step.nodes),
        argv=tuple(program),
        tasks=tuple(step_tasks(step, request.gpus_per_task, (request.distribution or "").startswith("cyclic"))),
        environ=variables,
        folder=os.path.join(talk.cwd, asked.get("chdir") or ""),
        umask=talk.umask,
        stdin=_input(asked.get("input")),
        stdout=stdout,
        stderr=_target(asked.get("error"), asked, job) if "error" in asked else _follows(stdout),
        patterns=letters(job, step.id, controller.user.name),
        label="label" in asked and asked.get("label") != "0",
        unbuffered="unbuffered" in asked,
        kill_on_bad_exit="kill-on-bad-exit" in asked and asked.get("kill-on-bad-exit") != "0",
        wait_s=asked.number("wait", 0) or 0,
        kill_wait_s=controller.settings.kill_wait_s,
        socket=str(daemon.paths.socket),
        cluster=str(daemon.paths.folder),
    )


def _follows(stdout: Target) -> Target | None:
    """stderr goes where stdout goes, as long as that is a file."""
    return None if stdout.kind in ("file", "null") else Target("srun")


def _target(pattern: str | None, asked: Asked, job: Job) -> Target:
    if pattern is None or pattern == "all":
        return Target("srun")
    if pattern == "none":
        return Target("null")
    if pattern.isdigit():
        return Target("one", rank=int(pattern))
    mode = asked.get("open-mode") or job.spec.open_mode or ""
    return Target("file", pattern, append=mode[:1].lower() == "a")


def _input(pattern: str | None) -> Target:
    if pattern == "none":
        return Target("null")
    if pattern is None or pattern == "all":
        return Target("srun")
    if pattern.isdigit():
        return Target("one", rank=int(pattern))
    return Target("file", pattern)


async def _allocate(talk: "Conversation", daemon: "Daemon", asked: Asked, program: list[str]) -> Job:
    """srun outside of a job: a job of its own."""
    partitions = daemon.model.partitions
    partition = asked.get("partition") or daemon.model.default_partition.name
    failed = "srun: error: Unable to allocate resources: "
    if partition not in partitions:
        raise Refusal(f"srun: error: invalid partition specified: {partition}\n{failed}{refusals.INVALID_PARTITION}")
    try:
        spec = job_spec(asked, talk.cwd, partition, talk.error)
        spec.name = asked.get("job-name") or os.path.basename(program[0])
        spec.batch, spec.requeue, spec.token = False, False, talk.token
        spec.command, spec.host, spec.alloc_pid, spec.umask = program[0], host_name(), talk.pid, talk.umask
        spec.submit_line = " ".join(["srun", *talk.words])
        spec.account = asked.get("account") or daemon.controller.user.name
        job = daemon.controller.submit(spec, None, b"", {})
    except ControllerError as error:
        raise Refusal(failed + str(error)) from None
    daemon.controller.settle()
    if not job.shares and "immediate" in asked:
        ending.cancel(daemon.controller, job)
        raise Refusal(failed + refusals.NODES_BUSY)
    if not job.shares:
        if job.reason == "PartitionConfig":
            talk.error("srun: Requested partition configuration not available now")
        talk.error(f"srun: job {job.id} queued and waiting for resources")
        await talk.flush()
        await _wait_for_nodes(talk, daemon, job)
        talk.error(f"srun: job {job.id} has been allocated resources")
    talk.environ.pop("SLURM_NTASKS", None)
    return job


async def _wait_for_nodes(talk: "Conversation", daemon: "Daemon", job: Job) -> None:
    while not job.shares:
        if job.over:
            raise Refusal(f"srun: error: Unable to allocate resources: Job {job.id} has been revoked")
        try:
            number = await change_or_signal(talk, daemon)
        except Gone:
            ending.cancel(daemon.controller, job)
            daemon.controller.settle()
            raise
        if number in ENDING:
            ending.cancel(daemon.controller, job)
            raise Refusal(f"srun: Job allocation {job.id} has been revoked")
