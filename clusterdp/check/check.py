"""check(): collects all findings about a run or a sweep before its submit. Files are written only with --probe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterdp import config as config_module
from clusterdp.check.cluster.cluster_facts import TIMEOUT_S, ClusterFacts, ask_cluster
from clusterdp.check.cluster.limits import limit_findings
from clusterdp.check.cluster.nodes import states_away
from clusterdp.check.finding import LEVELS, Finding, place_of
from clusterdp.check.node_counts import batch_findings, range_findings, range_notes
from clusterdp.check.program import ProgramText, read_program, read_python_file, read_script
from clusterdp.check.program.command_words import module_file
from clusterdp.check.program.sources import OURS
from clusterdp.check.subject import Subject, last_run, memory_findings
from clusterdp.check.surroundings.ignored_files import ignored_findings
from clusterdp.check.surroundings.probe import environment_findings, host_python_findings, launch_findings
from clusterdp.check.surroundings.storage_room import room_findings, sharing_findings
from clusterdp.check.survival.launchers import launcher_findings
from clusterdp.check.survival.preemption import preemption_of, requeue_note, survival_findings
from clusterdp.check.survival.program_hints import program_findings
from clusterdp.check.survival.signals import signal_findings
from clusterdp.config.foreign_keys import key_for
from clusterdp.config.tree import ResourcesConfig
from clusterdp.errors import SlurmError
from clusterdp.slurm import commands
from clusterdp.slurm.nodes import GPUS
from clusterdp.submission.plan import make_plan
from clusterdp.submission.render.script_spec import ScriptSpec, lines_of
from clusterdp.submission.send.new_folder import is_a_run
from clusterdp.wording import counted, did_you_mean, duration

if TYPE_CHECKING:
    from clusterdp.config import Given

# Slurm's answer to --test-only about a reservation that begins later. sbatch accepts such a job (job_test_resv in
# src/slurmctld/reservation.c).
NOT_BEGUN = "Invalid time specified"
DIRECTIVE = re.compile(r"\s*#SBATCH\s+(?:--(?P<long>[a-z][a-z-]*)|-\w).*")
# All options of sbatch in Slurm 20.11 to 26.05
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
WORKERS = ("num_workers", "workers", "loader_workers", "n_workers")  # names of a param that sets loader workers
KEY = "resources.cpus_per_task"


@dataclass(frozen=True)
class Checked:
    """What check() found."""

    name: str
    findings: list[Finding]
    notes: list[str]  # useful facts that are not findings
    asked: bool  # True if Slurm has answered

    @property
    def fails(self) -> bool:
        return any(finding.level == "error" for finding in self.findings)


def check(given: Given, config_file: Path, probe: bool = False) -> Checked:
    """Returns the findings and the notes about a run. Raises ConfigError for a mistake with which `submit` would not
    even ask Slurm."""
    subject = subject_of(given, config_file)
    cluster = ask_cluster(subject.config.resources) if commands.have_slurm() else ClusterFacts()
    found = [*all_findings(subject, cluster, _hosts(subject, cluster))]
    if probe:
        from clusterdp.check.surroundings.probe import probe_findings

        found += probe_findings(subject)
    notes = [*_notes(subject, cluster)]
    if cluster.partitions and not any(finding.level == "error" for finding in found):
        refusal, note = _ask_sbatch(subject, cluster)
        found += refusal
        notes += note
    return Checked(subject.config.name, _in_order(found, given.sources), notes, bool(cluster.partitions))


def subject_of(given: Given, config_file: Path) -> Subject:
    if given.sweeps:
        from clusterdp.submission.sweep.plan import make_sweep_plan

        sweep = make_sweep_plan(given)
        spec, script, elements = sweep.spec, sweep.scripts[0][1].text, len(sweep.sweep.elements)
    else:
        plan = make_plan(config_module.resolve(given).config)
        spec, script, elements = plan.spec, plan.script.text, 1
    last = last_run(spec.config.name, spec.submit_dir)
    return Subject(spec, given.sources, script, elements, last, program_of(spec, given.sources, config_file))


def program_of(spec: ScriptSpec, sources: Mapping[str, str], config_file: Path) -> ProgramText | None:
    """Returns the text of the config's program; None if the program is not a file in the submit directory."""
    folder = spec.submit_dir
    if spec.kind == "command":
        return read_program(spec.command, folder)
    if spec.kind == "script":
        key = sources.get("script", "").rpartition(":")[2]  # line of the key `script`; the script's own lines follow
        before = int(key) if key.isdecimal() else 0
        return read_script(lines_of(spec.config.script, "script"), folder, config_file, before)
    module = (spec.config.entry or "").partition(":")[0]
    file = module_file(module, [folder]) if module.split(".")[0] != OURS else None
    return read_python_file(file, folder) if file else None


def all_findings(subject: Subject, cluster: ClusterFacts, hosts: set[str]) -> Iterator[Finding]:
    """Yields all findings, in no particular order. `hosts` has the names and addresses of the nodes."""
    yield from option_findings(subject)
    yield from limit_findings(subject, cluster)
    yield from misread_findings(subject)
    yield from batch_findings(subject)
    yield from range_findings(subject, cluster)
    yield from survival_findings(subject, cluster)
    yield from launcher_findings(subject)
    yield from signal_findings(subject, cluster)
    yield from room_findings(subject)
    if is_a_run(subject.spec.run_dir):
        remedy = f"Name another, or go on with it: clusterdp resume {subject.spec.run_dir}"
        yield Finding("error", "run_dir", f"{subject.spec.run_dir} holds a run already", "submit refuses it", remedy)
    yield from sharing_findings(subject, hosts)
    yield from ignored_findings(subject)
    yield from processor_findings(subject, cluster)
    yield from environment_findings(subject)
    yield from host_python_findings(subject)
    yield from launch_findings(subject)
    yield from program_findings(subject)


def _hosts(subject: Subject, cluster: ClusterFacts) -> set[str]:
    if not cluster.partitions or "sinfo" in cluster.silent:
        return set()
    try:
        return commands.node_hosts(",".join(cluster.asked(subject.config.resources.partition)), TIMEOUT_S)
    except SlurmError:
        return set()


def _notes(subject: Subject, cluster: ClusterFacts) -> Iterator[str]:
    yield from range_notes(subject, cluster)
    if not cluster.partitions:
        if cluster.silent:
            yield (
                f"Slurm was asked, and gave no answer that is understood ({cluster.silent[0]}): limits of partition, "
                "QOS and nodes were not looked at. `scontrol ping` says whether the controller is up."
            )
            return
        said = f"{cluster.other} is another cluster" if cluster.other else "there is no sbatch here"
        yield f"No scheduler was asked ({said}): limits of partition, QOS and nodes were not looked at."
        return
    if cluster.silent:
        yield f"No answer that is understood from {', '.join(cluster.silent)}: what they know was not looked at."
    if said := requeue_note(subject, cluster):
        yield said
    preemption = preemption_of(subject, cluster)
    if preemption is None:
        return
    if subject.spec.kind == "entry":
        does = "all ranks save at one step, and the job is requeued"
    else:
        does = "the program gets SIGTERM, and the job is requeued, whatever it exits with"
    if preemption.mode == "REQUEUE" and subject.config.restart.requeue:
        words, has_s = preemption.in_words(), preemption.grace_s or cluster.kill_wait_s
        yield f"{words[0].upper()}{words[1:]}. Then {does}; what has not ended after {duration(has_s)} is killed."


def _ask_sbatch(subject: Subject, cluster: ClusterFacts) -> tuple[list[Finding], list[str]]:
    """Returns a finding if `sbatch --test-only` refuses the job, else a note with Slurm's estimate of the start."""
    try:
        answer = commands.ask_test_only(subject.script, subject.spec.submit_dir, TIMEOUT_S)
    except SlurmError as error:
        return [], [f"sbatch --test-only was asked, too: {error}"]
    said = re.sub(r"(sbatch: (error: )?|allocation failure: )", "", answer.said)
    if answer.accepted:
        return [], [f"sbatch --test-only guesses: {said}"]
    if doubt := _doubt(subject, cluster, answer, said):
        key, why, remedy = doubt
        return [Finding("warning", key, f"sbatch --test-only says: {said}", why, remedy)], []
    what = f"sbatch --test-only refuses it: {said}"
    return [Finding("error", "resources", what, "sbatch refuses the job as well", "Change what it names.")], []


def _doubt(
    subject: Subject, cluster: ClusterFacts, answer: commands.SbatchAnswer, said: str
) -> tuple[str, str, str] | None:
    """Returns (key, why, remedy) if sbatch may accept the job although --test-only refuses the job."""
    if answer.may_wait and (away := states_away(subject, cluster)):
        why = f"nodes that are {away} now are left out there, and the job waits for them, or is refused"
        return "resources", why, "Try again when they are back."
    if answer.may_wait and not cluster.counts_memory and subject.memory_mb > subject.memory_of_unit_mb:
        # Slurm 22.05 refuses 8 x 3G on a node of 16G in --test-only, but starts such a job.
        why = "memory of all CPUs is added up there; sbatch may accept the job, because it shares out no memory here"
        return subject.memory_key, why, "Submit it, or ask for less."
    if answer.may_wait and "," in (subject.config.resources.partition or ""):
        why = "one of the partitions may fit all the same: sbatch goes on to the next, and --test-only may not"
        return "resources.partition", why, "Submit it, or name one partition."
    if subject.config.resources.reservation and NOT_BEGUN in said:
        why = "the reservation has not begun, or has no nodes: the job waits for it"
        return "resources.reservation", why, "Look at scontrol show reservation."
    return None


def _in_order(found: Sequence[Finding], sources: Mapping[str, str]) -> list[Finding]:
    """Returns the findings ordered by level, without duplicates, each with the line of its key in the config."""
    placed = [each if each.where else replace(each, where=place_of(each.key, sources)) for each in found]
    return sorted(dict.fromkeys(placed), key=lambda each: LEVELS.index(each.level))


def misread_findings(subject: Subject) -> Iterator[Finding]:
    yield from _of_time(subject)
    yield from memory_findings(subject)
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
    """Yields a finding if a node has more GPUs than ranks, because only gpus_per_node and tasks_per_node make ranks."""
    resources = subject.config.resources
    if resources.gpus_per_task and subject.spec.ranks_per_node > 1:
        what = "each rank sees its own GPUs alone, and calls the first one 0"
        why = "NCCL cannot use NVLink to GPUs that a site's cgroups hide, which is up to 10 times slower"
        remedy = "Write resources.gpus_per_node; a rank's GPU is job.device, or number LOCAL_RANK."
        yield Finding("hint", "resources.gpus_per_task", what, why, remedy)
    if resources.tasks_per_node or resources.gpus_per_node or resources.gpus_per_task:
        return
    of_gres = sum(int(count) for _, count in GPUS.findall(resources.gres or ""))
    asked = str(resources.extra.get("gpus", "")).rpartition(":")[2]
    of_extra = int(asked) // resources.job_nodes if asked.isdecimal() else 0
    key = "resources.gres" if of_gres else "resources.extra.gpus"
    if (each := of_gres or of_extra) > 1:
        what = f"one rank on each node with {each} GPUs: only gpus_per_node makes a rank for each"
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
    own["gres"] = "resources.gpus_per_node"  # gres is mostly used for GPUs
    keys = ", ".join(filter(None, (own.get(name) or key_for(name) for name in names)))
    remedy = f"Write {keys}." if keys else "Write them below resources:, or below resources.extra."
    where = f"{file}:{int(line) + number}" if line.isdecimal() else ""
    yield Finding("warning", "script", what, why, remedy, where)


def option_findings(subject: Subject) -> Iterator[Finding]:
    for option in subject.config.resources.extra:
        # sbatch also accepts the beginning of an option's name.
        if not any(known.startswith(option) for known in KNOWN):
            meant = did_you_mean(option, KNOWN, "Remove it, or look for its name in `sbatch --help`.")
            why = "sbatch refuses it, unless a plugin of this site has it"
            yield Finding("warning", f"resources.extra.{option}", f"sbatch has no option --{option}", why, meant)


def processor_findings(
    subject: Subject, cluster: ClusterFacts, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    cpus = subject.config.resources.cpus_per_task
    given = ((value, f"params.{name}") for name in WORKERS if type(value := subject.config.params.get(name)) is int)
    workers, where = next(given, (0, ""))
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


def _share(subject: Subject, cluster: ClusterFacts) -> int:
    """Returns how many CPUs a node has for each of its GPUs, in the job's partitions."""
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
