"""Values that are read otherwise than they were meant: hours as minutes, GPUs without ranks, directives in a script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.check.survival.program_hints import is_given
from clusterdp.config.foreign_keys import key_for
from clusterdp.config.tree import ResourcesConfig
from clusterdp.launch.render.script_spec import lines_of
from clusterdp.slurm.nodes import GPUS
from clusterdp.wording import counted, did_you_mean, duration

DIRECTIVE = re.compile(r"\s*#SBATCH\s+(?:--(?P<long>[a-z][a-z-]*)|-\w).*")
# Of 20.11 to 26.05.
KNOWN = frozenset(
    """
    account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment
    consolidate-segments constraint container container-id container-type context contiguous core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
    exclusive export export-file external extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update
    mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket oom-kill-step open-mode output overcommit oversubscribe parsable partition
    power prefer priority profile propagate qos quiet reboot requeue reservation resources resv-ports segment signal
    sockets-per-node spread-job spread-segments stepmgr switches tasks-per-node test-only thread-spec
    threads-per-core time time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose version wait
    wait-all-nodes wckey wrap
    """.split()
)
WORKERS = ("num_workers", "workers", "loader_workers", "n_workers")  # params that people give such names
KEY = "resources.cpus_per_task"


def misread_findings(subject: Subject) -> Iterator[Finding]:
    yield from _of_time(subject)
    yield from _of_gpus(subject)
    yield from _of_directives(subject)


def _of_time(subject: Subject) -> Iterator[Finding]:
    asked = subject.config.resources.time or ""
    if re.fullmatch(r"\d+:\d\d", asked) and subject.time_s:
        minutes = asked.partition(":")[0]
        what = f"{asked} is {duration(subject.time_s)}: Slurm reads MINUTES:SECONDS"
        why = "the run is stopped each time that is over"
        remedy = f'Write "{asked}:00" for hours, or {minutes} for minutes.'
        yield Finding("hint", "resources.time", what, why, remedy)


def _of_gpus(subject: Subject) -> Iterator[Finding]:
    """Only gpus_per_node, and tasks_per_node, make ranks."""
    resources = subject.config.resources
    if resources.tasks_per_node or resources.gpus_per_node or resources.gpus_per_task:
        return
    of_gres = sum(int(count) for _, count in GPUS.findall(resources.gres or ""))
    asked = str(resources.extra.get("gpus", "")).rpartition(":")[2]
    of_extra = int(asked) // resources.nodes if asked.isdecimal() else 0
    key = "resources.gres" if of_gres else "resources.extra.gpus"
    if (each := of_gres or of_extra) > 1:
        what = f"one rank on each node, for its {each} GPUs: only gpus_per_node makes a rank for each"
        why = "the others are idle, unless the program uses several"
        remedy = f"Write resources.gpus_per_node: {each} instead, or say how many ranks: tasks_per_node."
        yield Finding("warning", key, what, why, remedy)


def _of_directives(subject: Subject) -> Iterator[Finding]:
    if subject.spec.kind != "script":
        return
    lines = lines_of(subject.config.script, "script").splitlines()
    found = [(number, match) for number, line in enumerate(lines, 1) if (match := DIRECTIVE.match(line))]
    if not found:
        return
    number, first = found[0]
    file, _, line = subject.sources.get("script", "").rpartition(":")
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    what = f"directives in it do nothing: {first[0].strip()}{others}"
    why = "sbatch reads those of the job's own script, which are made of resources:"
    names = dict.fromkeys(match["long"] for _, match in found if match["long"])
    own = {each.name.replace("_", "-"): f"resources.{each.name}" for each in fields(ResourcesConfig)}
    own["gres"] = "resources.gpus_per_node"  # nearly always
    keys = ", ".join(filter(None, (own.get(name) or key_for(name) for name in names)))
    remedy = f"Write {keys}." if keys else "Write them below resources:, or below resources.extra."
    where = f"{file}:{int(line) + number}" if line.isdecimal() else ""
    yield Finding("warning", "script", what, why, remedy, where)


def option_findings(subject: Subject) -> Iterator[Finding]:
    for option in subject.config.resources.extra:
        # sbatch takes the beginning of a name, too.
        if not any(known.startswith(option) for known in KNOWN):
            meant = did_you_mean(option, KNOWN, "Remove it, or look for its name in `sbatch --help`.")
            why = "sbatch refuses it, unless a plugin of this site has it"
            yield Finding("warning", f"resources.extra.{option}", f"sbatch has no option --{option}", why, meant)


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
