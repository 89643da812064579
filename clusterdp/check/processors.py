"""CPUs against ranks, loader workers and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from clusterdp.check.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.program_hints import is_given
from clusterdp.check.subject import Subject
from clusterdp.wording import counted

WORKERS = ("num_workers", "workers", "loader_workers", "n_workers")  # params that people give such names
KEY = "resources.cpus_per_task"


def processor_findings(
    subject: Subject, cluster: ClusterFacts, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    cpus = subject.config.resources.cpus_per_task
    workers, where = _workers(subject)
    if workers > cpus:
        what = f"{counted(cpus, 'CPU')} for each rank, which starts {workers} loader workers"
        why = "they take turns, and the GPU waits for data" if subject.gpus_per_node else "they take turns"
        yield Finding("warning", KEY, what, why, f"Write {workers + 1}, or start fewer workers ({where}).")
    elif cpus == 1 and subject.gpus_per_node and not subject.config.resources.exclusive:
        share = _share(subject, cluster)
        of_node = f"; a node has {share} for each" if share > 1 else ""
        what = f"1 CPU for each rank with a GPU{of_node}"
        why = "the loader, its workers and the copies to the GPU share it with Python"
        yield Finding("hint", KEY, what, why, f"Write {share if share > 1 else 'e.g. 8'}.")
    yield from _of_threads(subject, environ)


def _workers(subject: Subject) -> tuple[int, str]:
    """The most that is written in the config or the program, and where."""
    for name in WORKERS:
        value = subject.config.params.get(name)
        if type(value) is int:
            return value, f"params.{name}"
    of_program = subject.program.workers if subject.program else []
    of_program = [each for each in of_program if not is_given(each[0], subject.spec.command)]
    place, most = max(of_program, key=lambda each: each[1], default=(None, 0))
    return most, subject.where(place) if place else ""


def _share(subject: Subject, cluster: ClusterFacts) -> int:
    """The CPUs of a node for each of its GPUs, in the partition of the job."""
    names = cluster.asked(subject.config.resources.partition)
    found = [group.cpus // group.gpus for group in cluster.groups if group.partition in names and group.gpus]
    return min(found, default=0)


def _of_threads(subject: Subject, environ: Mapping[str, str]) -> Iterator[Finding]:
    cpus, launch = subject.config.resources.cpus_per_task, subject.config.launch
    given = launch.env.get("OMP_NUM_THREADS")
    key = "launch.env.OMP_NUM_THREADS" if given is not None else "OMP_NUM_THREADS"
    threads = given if given is not None else environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > cpus:
        from_here = "" if given is not None else " in this shell, and goes with the job"
        what = f"{threads} is set{from_here}; a rank has {counted(cpus, 'CPU')}"
        remedy = f"Write {cpus}." if given is not None else "unset OMP_NUM_THREADS: the job then sets it itself."
        yield Finding("warning", key, what, "its threads take turns, and all operations on the CPU get slower", remedy)
