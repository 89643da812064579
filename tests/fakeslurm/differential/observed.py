"""What is left of a workload when it is over: states, exit codes, environments, files. Without what differs from run to
run on any cluster: numbers of jobs and processes, times, which node it was, lines whose order or coming is chance."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .workload import JobRecord, Workload

Observation = dict[str, Any]
Call = Callable[..., Any]

FIELDS = """
    JobState Reason ExitCode DerivedExitCode Requeue Restarts BatchFlag NumNodes NumCPUs NumTasks CPUs/Task Partition
    JobName StdErr StdOut Comment Dependency TimeLimit Nice MinMemoryNode MinMemoryCPU TresPerNode TresPerJob
    TresPerTask ArrayTaskThrottle Features Command
""".split()
# Not DerivedExitCode: of a job whose script was killed the real Slurm knows it or not, as chance has it.
SACCT = "JobID,JobName,State,ExitCode,NTasks,AllocCPUS,ReqMem,Partition,NNodes"
SACCT_WITHIN_S = 30
NOT_YET = re.compile(r"\|(RUNNING|PENDING|allocation)\|")  # "allocation": the end came before the start
# Set by shells, or other on every run.
NOT_COMPARED = """
    _ SHLVL PWD OLDPWD PATH SLURM_CONF SLURM_CLUSTER_NAME SLURM_WORKING_CLUSTER SLURM_TASK_PID SLURM_SRUN_COMM_PORT
    SLURM_SRUN_COMM_HOST SLURM_STEP_LAUNCHER_PORT SLURM_LAUNCH_NODE_IPADDR FAKESLURM_JOB_OF SLURM_TOPOLOGY_ADDR
    SLURMD_NODENAME HOSTNAME SLURM_JOB_ID SLURM_JOBID SLURM_ARRAY_JOB_ID SLURM_JOB_USER LOGNAME USER HOME MAIL
    SLURM_PRIO_PROCESS LANG TERM SLURM_JOB_START_TIME SLURM_JOB_END_TIME SLURM_JOB_SLUID
""".split()
# Whether they come depends on who is quicker.
CHANCE = re.compile(
    r"got SIGCONT|forcing job termination|Force Terminated|^\S+: line \d+: +\d+ |Job step aborted|"
    r"step creation|Step created|\*\*\* (STEP|REASON)|Waiting up to|interrupt|Terminating StepId"
)
# srun is killed with its tasks; before that it may have told of their end.
LAST_WORDS = re.compile(r"srun: error: \S+: tasks? [\d,-]+: Killed")
# What a script says that went on behind a step that was told to end.
AFTER_STEP = re.compile(r"srun 0: (7|137|143)$")


def observe(
    call: Call, workload: Workload, folder: Path, ids: dict[str, str], said: dict[str, list[str]]
) -> Observation:
    jobs = {name: _job(call, job_id) for name, job_id in ids.items()}
    clean = _Cleaner(folder, {record["JobId"]: f"<{name}>" for name, records in jobs.items() for record in records})
    return {
        "said": {name: sorted(map(clean, lines)) for name, lines in said.items()},
        "jobs": {
            name: [{key: clean(record[key]) for key in FIELDS if key in record} for record in records]
            for name, records in jobs.items()
        },
        "sacct": {
            job.name: _without_chance(job, [clean(row) for row in _rows(call, ids[job.name], jobs[job.name])])
            for job in workload.jobs
            if job.name in jobs
        },
        "env": {path.name: _environ(path, clean) for path in sorted(folder.glob("env.*"))},
        "files": _files(folder, clean, workload),
    }


def _job(call: Call, job_id: str) -> list[dict[str, str]]:
    records = []
    for line in call("scontrol", "-o", "show", "job", job_id).stdout.splitlines():
        pairs = re.findall(r"(\S+?)=(.*?)(?= [A-Za-z:/]+=|\s*$)", line)
        records.append(dict(pairs))
    return sorted((record for record in records if "JobId" in record), key=_place)


def _place(record: dict[str, str]) -> tuple[int, str]:
    """Elements by number; what of an array never ran comes last, as `4-6`."""
    element = record.get("ArrayTaskId", "0")
    return (int(element), "") if element.isdigit() else (1 << 30, element)


def _rows(call: Call, job_id: str, records: list[dict[str, str]]) -> list[str]:
    """sacct is late: until there is a row for each attempt of the job, and none is pending or running."""
    count = sum(1 + int(record.get("Restarts", "0")) for record in records)
    deadline = time.monotonic() + SACCT_WITHIN_S
    while True:
        out = call("sacct", "-n", "-P", "-D", "-j", job_id, "-o", SACCT).stdout.splitlines()
        whole = [row for row in out if "." not in row.split("|")[0]]
        done = len(whole) >= count and not any(NOT_YET.search(row) for row in out)
        if done or time.monotonic() > deadline:
            return out
        time.sleep(0.5)


def _ends_by_chance(job: JobRecord) -> bool:
    """Whether the script is killed, or goes on behind its srun and ends by itself: when a job is requeued as a whole,
    its step may hear of it first, and a script without a trap be too late for the signal.
    """
    return bool(job.steps) and not job.before and (job.partition == "low0" or job.action.startswith("requeue"))


def _without_chance(job: JobRecord, rows: list[str]) -> list[str]:
    if not _ends_by_chance(job):
        return rows
    ends = re.compile(r"(\.batch\|batch)\|\w+\|\d+:\d+")
    first = next((row for row in rows if ends.search(row)), "")
    return [ends.sub(r"\1|ended", row) if row is first else row for row in rows]


def _environ(path: Path, clean: Callable[[str], str]) -> dict[str, str]:
    words = path.read_bytes().decode("utf-8", "surrogateescape").split("\0")
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    names = [name for name in sorted(pairs) if name not in NOT_COMPARED and not name.startswith("PYENV")]
    return {name: clean(pairs[name]) for name in names}


def _files(folder: Path, clean: Callable[[str], str], workload: Workload) -> dict[str, list[str]]:
    """The lines of each file that the jobs wrote, sorted: tasks write when they like."""
    ours = {"task.sh", "quiet", *(f"{job.name}.sh" for job in workload.jobs)}
    killed = any(job.holds for job in workload.jobs)
    goes_on = any(map(_ends_by_chance, workload.jobs))
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ours and not path.name.startswith(("env.", "ready.", "go.")):
            text = path.read_text(errors="replace").replace("slurmstepd-n", "slurmstepd: n")
            lines = [clean(line) for line in text.splitlines() if not CHANCE.search(line)]
            lines = [line for line in lines if not (killed and LAST_WORDS.match(line))]
            lines = [line for line in lines if not (goes_on and AFTER_STEP.match(line))]
            found[clean(str(path.relative_to(folder)))] = sorted(each for line in lines for each in _alone(line))
    return found


def _alone(line: str) -> list[str]:
    """Tasks that end at the same time have one line together."""
    match = re.match(r"(srun: error: <nodes>: task)s ([\d,-]+)(: .*)", line)
    if not match:
        return [line]
    ranks = [rank for part in match[2].split(",") for rank in _range(part)]
    return [f"{match[1]} {rank}{match[3]}" for rank in ranks]


def _range(part: str) -> range:
    low, _, high = part.partition("-")
    return range(int(low), int(high or low) + 1)


class _Cleaner:
    """Puts names in the place of what differs from run to run."""

    def __init__(self, folder: Path, names: dict[str, str]):
        self._folder, self._names = str(folder), names

    def __call__(self, text: str) -> str:
        text = text.replace(self._folder, "<folder>")
        text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?", "<time>", text)
        text = re.sub(r"slurmstepd(: n\d+)?: ", "slurmstepd: ", text)
        text = re.sub(r"\bn\[[\d,-]+\]|\bn[1-9]\b", "<nodes>", text)
        text = text.replace("365-00:00:00", "UNLIMITED")  # who started it, the backfill or the other scheduler
        text = re.sub(r"/\S*/job\d+/slurm_script", "<spool>/slurm_script", text)
        return re.sub(r"\b0*(\d{5,})(?=\b|_)", lambda match: self._names.get(match[1], match[0]), text)
