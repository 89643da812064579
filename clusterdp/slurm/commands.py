"""The only module that runs Slurm commands, of a real Slurm or of the fake one.

Each function makes one call for any number of jobs, because a controller may serve a thousand users.
"""

from __future__ import annotations

import getpass
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterdp.errors import SlurmError, SubmitError, SubmitInDoubt
from clusterdp.slurm.associations import ASSOCIATION_FIELDS, GROUP_LIMITS, Association, read_associations
from clusterdp.slurm.jobid import JOB_ID, Submitted, is_job_id
from clusterdp.slurm.nodes import SINFO_FORMAT, NodeGroup, read_sinfo
from clusterdp.slurm.quantities import seconds_of

MOST_SAID = 500  # characters of a command's error message that are shown
LONGEST_ARGUMENT = 100_000  # characters; the limit of Linux is 128 KiB
MAX_ARRAY_SIZE = 1001  # Slurm's default of MaxArraySize
SLOW_S = 5.0  # seconds after which a user at a terminal is told what takes so long
ANSWER_TIMEOUT_S = 60.0  # slurmctld may be busy: MessageTimeout is 10 s, and clients retry

# Variables that leak from an outer job into sbatch, and from sbatch into the srun of the new job. `SLURM_CPU_BIND` and
# sizes such as `SLURM_NTASKS` would change that srun; `SBATCH_*` and `SRUN_*` override the script's own lines.
# Variables that name the cluster must stay.
LEAKS = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SUBMITIT)_")
KEEPS = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"})

# Slurm's own lines. A site's wrappers, proxies and plugins print any text around them, on both streams.
OWN = re.compile(
    r"^(?:(?:\S*/)?(?:sbatch|squeue|scontrol|scancel|sinfo|sacct|sacctmgr|srun): |(?:slurm|scontrol)_\w+(?: error)?:"
    r"|allocation failure: |(?:Job is|Requested operation|Access/permission|Invalid job id)\b.* for job ).*$",
    re.MULTILINE,
)
# The line in which sbatch itself refuses a job; other errors before it, such as those of plugins, are no refusal.
REFUSAL = re.compile(r"^(?:\S*/)?sbatch: (?:error|fatal|(?:\w+ )?option)\b.*$", re.MULTILINE)
FAILED = "Batch job submission failed"
# The messages that sbatch prints if the controller does not answer.
ANSWER_LOST = re.compile(
    r"timed? ?out|zero bytes|(send|receive|shutdown) failure|connection (reset|aborted)|broken pipe|not connected"
    r"|header lengths|insane message|unexpected message",
    re.I,
)
NOT_KNOWN = re.compile(r"^(?:slurm_load_jobs error: ?|squeue: error: )Invalid job id specified", re.MULTILINE)
REQUEUED = re.compile(r"^(?:scontrol: error: |slurm_\w+ error: ?)?Job is pending execution", re.MULTILINE)

# The two answers of --test-only that depend on which nodes are up.
MAY_WAIT = re.compile(r"Requested (node configuration is not available|partition configuration not available now)")


# A row of squeue. Pending elements (`7_[2-9]`) and a part of a heterogeneous job (`7+0`) are stored under the id of the
# job.
ROW = re.compile(rf"({JOB_ID})(?:_\[[^|]*\]|\+[0-9]+)?\|([A-Z][A-Z0-9_]*)\|([^\t]*)\|([^|\t]*)(?:\t([^\t]*)\t(.*))?")
ANSWER = re.compile(rf"^[ \t]*({JOB_ID})(?:;([\w.-]+))?[ \t]*$", re.MULTILINE | re.ASCII)  # of sbatch --parsable
OWN_ROW = re.compile(r"([0-9]+)\|([A-Z_]+)\|(.*)")
QOS_FIELDS = (
    *("MaxWall", "MinTRES", "MaxTRES", "MaxTRESPerNode", "MaxTRESPU", "MaxTRESPA", "GrpTRES", "MaxSubmitPU"),
    *("MaxTRESMins", "GrpTRESMins", "MaxJobsPU", "MaxJobsPA", "GrpJobs"),
    *("GraceTime", "Preempt", "PreemptMode", "Flags"),
)


class CommandTimeout(SlurmError):
    """Raised if a command does not end in time."""


class SqueueRow(NamedTuple):
    """A line of squeue: `state` is the long word (PENDING), `reason` is as printed, `nodes` is a host list such as
    `n[1-2]`, or empty."""

    state: str
    reason: str
    nodes: str
    cluster: str = ""  # only in jobs_of_scripts_in(), and empty for the default cluster
    script: str = ""  # path of the batch script; not in jobs_of_scripts_in()
    name: str = ""


class SbatchAnswer(NamedTuple):
    """The answer of `sbatch --test-only`: whether the job is accepted, and the text that sbatch prints."""

    accepted: bool
    said: str

    @property
    def may_wait(self) -> bool:
        """Whether sbatch may accept the job that --test-only refused. The controller checks the request as in a real
        submit, but then looks only for nodes that are up. As long as other nodes are down, a negative answer is not a
        refusal (job_start_data in src/slurmctld/job_scheduler.c)."""
        return bool(re.search(MAY_WAIT, self.said))


def have_slurm() -> bool:
    return shutil.which("sbatch") is not None


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment to submit from, without the variables that would leak from an outer job into the new
    job."""
    return {key: value for key, value in environ.items() if key in KEEPS or not LEAKS.match(key)}


def submit(script: Path, cwd: Path, *options: str) -> Submitted:
    """Runs `sbatch --parsable SCRIPT`. Returns the new job. Raises SubmitError with sbatch's text, or
    SubmitInDoubt if the job may have been accepted. `options` are options of sbatch, which override those in the
    script."""
    try:
        done = _call(["sbatch", "--parsable", *options, str(script)], cwd=cwd)
    except CommandTimeout as error:
        raise SubmitInDoubt(str(error)) from None
    except SlurmError as error:
        raise SubmitError(str(error)) from None
    except KeyboardInterrupt:
        raise SubmitInDoubt("sbatch: interrupted before it had answered.") from None
    said = f"{done.stderr}\n{done.stdout}"
    answers, refusals = set(ANSWER.findall(done.stdout)), REFUSAL.findall(said)
    if done.returncode != 0 and (not answers or any(FAILED in line for line in refusals)):
        raise refused("sbatch", said, done.returncode)
    if len(answers) != 1 or (done.returncode != 0 and refusals):
        raise SubmitInDoubt(
            f"sbatch: answered {done.stdout.strip()!r:.200}, not a job id. Is something on PATH wrapping sbatch?"
        )
    return Submitted(*answers.pop())


def refused(who: str, said: str, exit_code: int) -> SubmitError:
    """Returns the error of a failed sbatch: SubmitInDoubt unless sbatch itself has refused the job, because the answer
    was lost, sbatch was killed, or another program on PATH has failed."""
    lines = REFUSAL.findall(said)
    verdict = next((line for line in lines if FAILED in line), lines[-1] if lines else "")
    killed = exit_code < 0 or 128 < exit_code < 192
    kind = SubmitInDoubt if killed or not verdict or ANSWER_LOST.search(verdict) else SubmitError
    return kind(f"{who}: could not submit (exit {exit_code}). It says: {own_words(said, verdict)}")


def jobs_of_scripts_in(folder: Path) -> dict[str, SqueueRow]:
    """Returns this user's jobs whose batch script is in `folder` or below, including recently ended jobs."""
    done = _call(["squeue", "--me", "--states=all", "--format=%F|%T|%o"])
    if done.returncode != 0:
        raise SlurmError(f"squeue: failed (exit {done.returncode}). It says: {_said(done)}")
    lines, rows, cluster = _lines(done), {}, ""
    for line in lines:
        cluster = line[len("CLUSTER: ") :].strip() if line.startswith("CLUSTER: ") else cluster
        if (match := OWN_ROW.fullmatch(line)) and match[3].startswith(f"{folder}/"):
            rows[match[1]] = SqueueRow(match[2], "", "", cluster)
    if not rows and "ARRAY_JOB_ID|STATE|COMMAND" not in lines:
        raise _unheard(lines)
    return rows


def job_states(jobs: Sequence[str], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, SqueueRow]:
    """Returns the rows of squeue for these jobs, including jobs that ended recently. A job that Slurm has forgotten has
    no row."""
    # Without --array, pending elements share one row, `7_[2-9]`.
    options = ["--array"] if any("_" in job for job in jobs) else []
    wanted, rows = set(jobs), _states(jobs, *options, timeout_s=timeout_s)
    return {job: row for job, row in rows.items() if job in wanted or job.partition("_")[0] in wanted}


def element_states(arrays: Sequence[str], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, SqueueRow]:
    """Returns the rows of squeue for all elements of these arrays: the key is such as `7_2`."""
    return _states(arrays, "--array", timeout_s=timeout_s)


def _states(jobs: Sequence[str], *options: str, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, SqueueRow]:
    if not jobs:
        return {}
    wanted = set(jobs)
    asked = ",".join(map(_checked, jobs))
    # If the jobs do not fit into an argument, squeue is called for all jobs; the controller sends all jobs to squeue in
    # any case.
    only = [f"--jobs={asked}"] if len(asked) < LONGEST_ARGUMENT else []
    # The header shows that the answer is squeue's own, and so that a job without a row is unknown to Slurm.
    words = ["squeue", "--states=all", *options, *only, "--format=%i|%T|%r|%N\t%o\t%j"]
    done = _call(words, timeout_s=timeout_s)
    if done.returncode != 0:
        if NOT_KNOWN.search(done.stderr):
            return {}
        raise SlurmError(f"squeue: failed (exit {done.returncode}). It says: {_said(done)}")
    rows: dict[str, SqueueRow] = {}
    lines, header = _lines(done), "JOBID|STATE|REASON|NODELIST"
    is_ours = any(line.partition("\t")[0] == header for line in lines)
    odd = [line for line in lines if re.match(r"(?!JOBID\|)[^|\s]+\|", line) and not ROW.fullmatch(line)]
    for match in filter(None, map(ROW.fullmatch, lines)):
        rows.setdefault(match[1], SqueueRow(match[2], match[3], match[4], "", match[5] or "", match[6] or ""))
    if (odd or not is_ours) and not rows.keys() >= wanted:
        raise _unheard(odd or lines)
    return rows if only else {job: row for job, row in rows.items() if {job, job.partition("_")[0]} & wanted}


def end_time(job: str, timeout_s: float = 5.0) -> float | None:
    """Returns when the time of a running job ends, in seconds since the epoch: infinity if the job has no limit. None
    if the time is unknown, because a container has no squeue, or the controller does not answer within timeout_s."""
    try:
        done = _call(["squeue", "--noheader", f"--jobs={_checked(job)}", "--format=%L"], timeout_s=timeout_s)
    except SlurmError:
        return None
    left = [math.inf if line.strip() == "UNLIMITED" else seconds_of(line.strip()) for line in _lines(done)]
    seconds = next((each for each in left if each is not None), None)
    return None if seconds is None else time.time() + seconds


def show_job(job: str) -> dict[str, str]:
    """Returns `scontrol show job` as a dictionary. Raises SlurmError if the controller no longer knows the job."""
    done = _call(["scontrol", "--oneliner", "show", "job", _checked(job)])
    shown = re.search(r"^JobId=.*(?:\n[ \t].*)*", done.stdout, re.MULTILINE)
    if not shown:
        raise SlurmError(f"scontrol: cannot show job {job}. It says: {_said(done)}")
    # Of several fields with one name, the first counts: a comment of the user may look like a field.
    return dict(reversed([pair.split("=", 1) for pair in shown[0].split() if "=" in pair]))


def node_groups(partition: str = "", timeout_s: float = ANSWER_TIMEOUT_S) -> list[NodeGroup]:
    """Returns the nodes of one partition, or of all partitions that this user may see."""
    only = [f"--partition={partition}"] if partition else []
    done = _call(["sinfo", "--noheader", "--exact", f"--format={SINFO_FORMAT}", *only], timeout_s=timeout_s)
    if done.returncode != 0:
        raise SlurmError(f"sinfo: failed (exit {done.returncode}). It says: {_said(done)}")
    return read_sinfo(_lines(done))


def show_partitions(timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, dict[str, str]]:
    """Returns `scontrol --all show partition`: a dictionary for each partition by its name, including hidden
    partitions."""
    done = _call(["scontrol", "--oneliner", "--all", "show", "partition"], timeout_s=timeout_s)
    if done.returncode != 0:
        raise SlurmError(f"scontrol: cannot show partitions. It says: {_said(done)}")
    shown = [dict(pair.split("=", 1) for pair in line.split() if "=" in pair) for line in _lines(done)]
    return {each["PartitionName"]: each for each in shown if "PartitionName" in each}


def associations(cluster: str = "", timeout_s: float = ANSWER_TIMEOUT_S) -> list[Association]:
    """Returns the associations of this user. `cluster` is the ClusterName, in case several clusters share a database.
    Raises SlurmError if accounting does not answer."""
    where = ["where", f"user={getpass.getuser()}", *_of_cluster(cluster), "withassoc"]
    return read_associations(_accounting("user", *where, f"format={','.join(ASSOCIATION_FIELDS)}", timeout_s=timeout_s))


def account_limits(account: str, cluster: str = "", timeout_s: float = ANSWER_TIMEOUT_S) -> tuple[dict[str, str], str]:
    """Returns (GROUP_LIMITS, parent) of an account: the limits of all its jobs together, and the parent account. Empty
    if sacctmgr does not show the account. Raises SlurmError if accounting does not answer."""
    where = ["where", f"account={account}", "user=", *_of_cluster(cluster)]
    fields = (*GROUP_LIMITS, "ParentName")
    lines = _accounting("associations", *where, f"format={','.join(fields)}", timeout_s=timeout_s)
    row = next((row for row in (line.split("|") for line in lines) if len(row) == len(fields)), [""] * len(fields))
    return dict(zip(GROUP_LIMITS, row, strict=False)), row[-1]


def show_config(timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, str]:
    """Returns `scontrol show config`: the values of slurm.conf and Slurm's defaults. Empty if scontrol fails."""
    done = _call(["scontrol", "show", "config"], timeout_s=timeout_s)
    return dict(re.findall(r"^([\w.\[\]]+)\s*= (.*?)\s*$", done.stdout, re.MULTILINE))


def max_array_size() -> int:
    """Returns MaxArraySize of slurm.conf, which is one more than the highest index of an array; Slurm's default if the
    value is unknown."""
    said = show_config().get("MaxArraySize", "")
    return int(said) if said.isdecimal() else MAX_ARRAY_SIZE


def show_qos(timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, dict[str, str]]:
    """Returns the QOS_FIELDS of each QOS. A field without a value is empty. Raises SlurmError if accounting does not
    answer."""
    fields = ",".join(("Name", *QOS_FIELDS))
    rows = [line.split("|") for line in _accounting("qos", f"format={fields}", timeout_s=timeout_s)]
    return {row[0]: dict(zip(QOS_FIELDS, row[1:], strict=True)) for row in rows if len(row) == 1 + len(QOS_FIELDS)}


def _accounting(*what: str, timeout_s: float = ANSWER_TIMEOUT_S) -> list[str]:
    done = _call(["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", *what], timeout_s=timeout_s)
    if done.returncode != 0:
        raise SlurmError(f"sacctmgr: cannot show {what[0]}. It says: {_said(done)}")
    return done.stdout.splitlines()


def _of_cluster(name: str) -> list[str]:
    return [f"cluster={name}"] if name else []


def ask_test_only(script: str, cwd: Path, timeout_s: float = ANSWER_TIMEOUT_S) -> SbatchAnswer:
    """Runs `sbatch --test-only` for this script. The call uses up a job id. An accepted job may still not start:
    --test-only ignores some limits of the partition, held nodes and the queue. Raises SlurmError if the controller does
    not answer."""
    done = _call(["sbatch", "--test-only"], cwd=cwd, timeout_s=timeout_s, given=script)
    said = own_words(f"{done.stderr}\n{done.stdout}")
    verdict = re.search(r"^(?:allocation failure|(?:\S*/)?sbatch): .*", done.stderr, re.MULTILINE)
    if done.returncode != 0 and (not verdict or ANSWER_LOST.search(said) or "Unable to contact" in said):
        raise SlurmError(f"sbatch: no answer. It says: {said}")
    return SbatchAnswer(done.returncode == 0, said)


def node_hosts(partition: str, timeout_s: float = ANSWER_TIMEOUT_S) -> set[str]:
    """Returns the host names and the addresses of a partition's nodes."""
    done = _call(["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%n|%o"], timeout_s=timeout_s)
    rows = filter(None, (re.fullmatch(r"([\w.-]+)\|([\w.:-]+)", line.strip()) for line in _lines(done)))
    return {word for row in rows for word in row.groups()} if done.returncode == 0 else set()


def cancel(*jobs: str) -> None:
    """Runs `scancel`. Runs `scancel` for these jobs. A job that is over is not an error, as for scancel itself."""
    _scancel(jobs)


def terminate_steps(*jobs: str) -> None:
    """Runs `scancel --signal=TERM`, which signals the steps of srun, but not the batch script. Slurm sends no KILL
    afterwards."""
    _scancel(jobs, "--signal=TERM")


def kill_step(job: str) -> None:
    """Runs `scancel --signal=KILL` for the step of the ranks, which is older than those beside it: the ranks die, but
    not the batch script. If the argument were a job instead of a step, scancel would cancel the job."""
    done = _call(["squeue", "--steps", "--noheader", f"--jobs={_checked(job)}", "--format=%i %j"])
    found = re.findall(r"^\s*[0-9_]+\.([0-9]+) (.*)", done.stdout, re.MULTILINE)
    steps = [int(step) for step, name in found if name.strip() != "keepers"]
    if not steps:
        raise SlurmError(f"squeue: job {job} has no step. It may have ended. It says: {_said(done)}")
    done = _call(["scancel", "--signal=KILL", f"{job}.{min(steps)}"])
    if done.returncode != 0:
        raise SlurmError(f"scancel: cannot signal step {job}.{min(steps)}. It says: {_said(done)}")


def beside(job: str, words: Sequence[str], nodes: Sequence[str], *options: str) -> str:
    """Runs a program beside the ranks of a job, once on each of these nodes, and returns what it prints. Raises
    SlurmError if srun starts no such step, because the site does not allow it, for example."""
    done = _call([*beside_words(job, nodes, *options), *words])
    if done.returncode != 0:
        raise SlurmError(f"srun: cannot run a step beside job {job}. It says: {_said(done)}")
    return done.stdout


def beside_words(job: str, nodes: Sequence[str], *options: str) -> list[str]:
    """Returns the srun of such a step: --overlap, because the ranks have all CPUs of the job."""
    clusters = os.environ.get("SLURM_CLUSTERS")
    only = [f"--clusters={clusters}"] if clusters else []
    sizes = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}", "--cpus-per-task=1"]
    return ["srun", *only, f"--jobid={_checked(job)}", "--overlap", *sizes, *options]


def update_job(job: str, *assignments: str) -> None:
    """Runs `scontrol update` for one of the user's jobs, e.g. with `TimeLimit=5`."""
    done = _call(["scontrol", "update", f"JobId={_checked(job)}", *assignments])
    if done.returncode != 0:
        raise SlurmError(f"scontrol: cannot update job {job}: {' '.join(assignments)}. It says: {_said(done)}")


def _scancel(jobs: Sequence[str], *options: str) -> None:
    done = _call(["scancel", *options, *map(_checked, jobs)])
    if done.returncode != 0:
        which = f"job {' '.join(jobs)[:80]}"
        raise SlurmError(f"scancel: cannot {'signal' if options else 'cancel'} {which}. It says: {_said(done)}")


def requeue(job: str) -> None:
    """Runs `scontrol requeue`. A job that Slurm has requeued already (`Job is pending execution`) is not an error."""
    done = _call(["scontrol", "requeue", _checked(job)])
    if done.returncode != 0 and not REQUEUED.search(done.stderr):
        raise SlurmError(f"scontrol: cannot requeue job {job}. It says: {_said(done)}")


def _checked(job: str) -> str:
    """Refuses anything but a job id, because scancel would also take `--me`."""
    if not is_job_id(job):
        raise SlurmError(f"{job!r:.80}: is not a job id. Look at what the run folder has in events/.")
    return job


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.split("\n") if line.strip()]


def _unheard(lines: Sequence[str]) -> SlurmError:
    what = f"{lines[0]!r:.80}" if lines else "nothing"
    return SlurmError(f"squeue: answered {what}, not rows. Is something on PATH wrapping squeue?")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Returns a command's error text with a full stop, because another sentence may follow."""
    said = _words(done)
    return said if said.endswith((".", "!", "?")) else f"{said}."


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return own_words(done.stderr if done.stderr.strip() else done.stdout)


def own_words(said: str, verdict: str = "") -> str:
    """Returns Slurm's own lines in one line, at least with the `verdict`; without any, the last words of all lines."""
    lines = OWN.findall(said)
    words = " ".join(" ".join(lines or [said]).split()) or "nothing"
    return words if len(words) <= MOST_SAID else verdict or f"...{words[-MOST_SAID:]}"


def _call(
    argv: list[str], cwd: Path | None = None, timeout_s: float = ANSWER_TIMEOUT_S, given: str = ""
) -> subprocess.CompletedProcess[str]:
    clusters = os.environ.get("SLURM_CLUSTERS")
    if clusters and argv[0] not in ("sbatch", "sacctmgr"):  # not all commands read the variable
        argv = [argv[0], f"--clusters={clusters}", *argv[1:]]
    words = f"clusterdp: {argv[0]} has not answered for {SLOW_S:.0f} s; waiting for {timeout_s:.0f} s at most."
    slow = threading.Timer(SLOW_S, lambda: sys.stderr.isatty() and print(words, file=sys.stderr))
    slow.daemon = True
    slow.start()
    try:
        return subprocess.run(
            argv,
            cwd=cwd,
            env=clean_environ(os.environ),
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a greeting that a site prints may have any encoding
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{argv[0]}: not on PATH. Run this on a login node of the cluster, or use `--cluster local`."
        ) from None
    except OSError as error:
        raise SlurmError(f"{argv[0]}: cannot be run: {error.strerror}. Look at what is on PATH.") from None
    except subprocess.TimeoutExpired:
        raise CommandTimeout(
            f"{argv[0]}: no answer within {timeout_s:.0f} s. Is the controller up (`scontrol ping`)?"
        ) from None
    finally:
        slow.cancel()
