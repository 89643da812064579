"""The sbatch scripts of a workload, and the program of its tasks."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .workload import JobRecord, Workload

# What batch scripts and tasks have in common. Of a job that was started again only the first attempt holds.
COMMON = """\
set +m
attempt=${SLURM_RESTART_COUNT:-0} element=${SLURM_ARRAY_TASK_ID:-x}
hold() {
  [ $attempt = 0 ] || return 0
  > $folder/ready.$me
  exec 9<> $folder/quiet
  until [ -e $folder/go.$name ]; do read -t 0.1 -u 9; done  # no process of its own that could be signalled
  return 0
}
"""
TASK = """\
name=$1 step=$2 folder=$3
{common}
me=$name.$element.$attempt.$step.$SLURM_PROCID
env -0 > $folder/env.$me
echo "task $SLURM_PROCID of $SLURM_NTASKS"
IFS='|' read -r -a programs <<< "$4"
eval "${{programs[$SLURM_PROCID]:-${{programs[${{#programs[@]}}-1]}}}}"
"""


def write(workload: Workload, folder: Path) -> None:
    (folder / "below").mkdir(parents=True)
    os.mkfifo(folder / "quiet")
    (folder / "task.sh").write_text(TASK.format(common=COMMON))
    for job in workload.jobs:
        (folder / f"{job.name}.sh").write_text(script(job, folder))


def script(job: JobRecord, folder: Path) -> str:
    lines = ["#!/bin/bash", f"name={job.name} folder={shlex.quote(str(folder))}", COMMON]
    lines += ["me=$name.$element.$attempt.batch last=0", "env -0 > $folder/env.$me", "echo begin $attempt"]
    lines += [job.before] if job.before else []
    for number, step in enumerate(job.steps):
        task = ["bash", str(folder / "task.sh"), job.name, str(number), str(folder), "|".join(step.programs)]
        srun = shlex.join(["srun", *step.options, *task])
        lines += [f"{srun} &", "wait $!"] if step.background else [srun]
        lines += ["last=$?", f"echo srun {number}: $last"]
    return "\n".join([*lines, job.end, ""])
