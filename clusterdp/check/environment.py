"""The job beside this machine: variables of the shell that submits, which go with it and change what the ranks do, and
the interpreter of the batch program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping

from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject

# What the job's script or submit itself sets or unsets is harmless, and no finding: RANK, WORLD_SIZE, MASTER_ADDR,
# SLURM_*, SBATCH_*, TORCHELASTIC_*, and CUDA_VISIBLE_DEVICES where Slurm gives GPUs.
GPUS = "no GPUs are asked of Slurm, so that it does not set it: the ranks see these alone"
IS_RECENT = "import sys; sys.exit(sys.version_info < (3, 6))"
START_S = 20
SLOW = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def environment_findings(subject: Subject, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    given = {name: value for name, value in environ.items() if value and name not in subject.config.launch.env}
    if "CUDA_VISIBLE_DEVICES" in given and not subject.gpus_per_node:
        yield _leaks("CUDA_VISIBLE_DEVICES", given, GPUS)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if name in given:
            yield _leaks(name, given, "where a node has no such interface, the ranks do not meet")
    for name in SLOW:
        if given.get(name, "0") not in ("0", "OFF", "INFO"):
            yield _leaks(name, given, "it is there to find faults, and makes a job slow")
    if environ.get("SLURM_JOB_ID") and subject.config.backend == "submitit":
        what = f"this shell is inside job {environ['SLURM_JOB_ID']}"
        yield Finding("hint", "SLURM_JOB_ID", what, "submitit takes parts of it over", "Submit from a login node.")


def _leaks(name: str, given: Mapping[str, str], why: str) -> Finding:
    what = f"{given[name][:40]} is set in this shell, and goes with the job"
    return Finding("hint", name, what, why, f"unset {name}, or write it in launch.env.")


def host_python_findings(subject: Subject) -> Iterator[Finding]:
    """Tried as the script tries it."""
    python = subject.config.launch.host_python
    if python is None:
        return
    try:
        words = [python, "-I", "-S", "-c", IS_RECENT]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S)
        problem = "is no Python of 3.6 or later here" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"cannot be run here ({getattr(error, 'strerror', None) or 'it does not end'})"
    if problem:
        why = (
            "where the first node is like this machine, the batch program runs with the system's Python, or not at all"
        )
        yield Finding("warning", "launch.host_python", f"{python} {problem}", why, "Name one that the nodes have.")
