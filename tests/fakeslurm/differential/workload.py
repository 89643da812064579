"""A workload: a few jobs, what their scripts do, and what is done to them. Made up from choices, simplest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Pick = Callable[[Sequence[Any]], Any]  # one of these; hypothesis shrinks towards the first

LAYOUTS = [
    [], ["-n2"], ["-N2"], ["-N2", "--ntasks-per-node=2"], ["-n2", "-c2"], ["-N1", "-n3"], ["-N2", "-n3"],
    ["--ntasks-per-node=2"], ["--mem=100M"], ["--mem-per-cpu=50"], ["-n2", "--distribution=cyclic"],
    ["--gpus-per-node=2"], ["--gres=gpu:2"], ["-n2", "--gpus-per-task=1"], ["--gpus=2"], ["-N2", "--gres=gpu:2"],
]  # fmt: skip
ARRAYS = [None, None, None, None, "0-1", "1,3", "0-2%1", "4"]
OUTPUTS = [
    [], [], ["--output=%x.%j.out"], ["--output=o.%A.%a"], ["-o", "%x-%u.log", "-e", "%x.err"], ["--error=only.%j"],
    ["--output=/dev/null"], ["--output=missing/x"], ["--output=%8j.%s.%t.%n"], ["--output=%%j.%x"],
]  # fmt: skip
MISC = [
    [], [], [], ["--open-mode=append"], ["--no-requeue"], ["--job-name=b c"], ["--export=ALL,MINE=1"],
    ["--export=NONE"], ["--comment=some words"], ["--nice=5"], ["--time=10"], ["--chdir=below"], ["--requeue"],
]  # fmt: skip
STEP_OPTIONS = [
    [], [], ["-n1"], ["--label"], ["-N1", "-n1"], ["--output=s.%s.%t"], ["--output=s.%J.%n"], ["-o", "none"],
    ["--output=0"], ["--exact", "-n1"], ["--export=NONE,PATH=/usr/bin:/bin"], ["--export=ALL,MORE=2"], ["--wait=1"],
    ["--overcommit", "-n4"], ["--job-name=st ep"], ["--unbuffered"], ["--chdir=/tmp"], ["--cpus-per-task=1"],
    ["-n9"], ["--gres=none"], ["--ntasks-per-node=1"],
]  # fmt: skip
# By rank, the last one for all further ones.
PROGRAMS = [
    ["exit 0"], ["exit 3"], ["exit 0", "exit 4"], ["kill -9 $$"], ["exit 137"], ["exit 0", "kill -TERM $$"],
    ["exit 5", "sleep 0.3; exit 6"], ["cat"], ["nosuch-command"], ["exit 300"], ["kill -ABRT $$", "exit 0"],
]  # fmt: skip
ENDS = ["", "exit 3", "exit $last", "kill -9 $$", "exit 137", "false", "nosuch-command", "kill -TERM $$", "exec true",
        "exec bash -c 'exit 9'"]  # fmt: skip
HOLDS = ["hold", "trap 'echo heard; exit 7' TERM; hold", "trap 'echo heard' TERM; hold", "trap '' TERM; hold"]
# Not aftercorr: for it Slurm splits a waiting array into its elements, which shows when they are cancelled.
CONDITIONS = ["afterany", "afterok", "afternotok", "after", "singleton"]
ACTIONS = [
    "cancel", "requeue", "cancel --batch", "cancel --full", "cancel --signal=USR1", "cancel --signal=USR1 --batch",
    "cancel --signal=TERM", "cancel --signal=KILL", "cancel --signal=USR1 --full", "requeuehold", "step", "preempt",
    "hold", "update",
]  # fmt: skip


@dataclass
class Step:
    options: list[str]
    programs: list[str]
    background: bool = False


@dataclass
class JobRecord:
    name: str
    options: list[str]
    steps: list[Step]
    end: str
    before: str = ""  # what the batch script does first
    dependency: tuple[str, str, bool] | None = None  # condition, job, --kill-on-invalid-dep
    action: str = ""  # done to it when it holds
    partition: str = ""
    array: str | None = None

    @property
    def holds(self) -> bool:
        return bool(self.action)

    @property
    def cpus(self) -> int:
        """More than it takes, if anything."""
        elements = 1 if not self.array else 3
        return 4 * elements

    @property
    def special(self) -> bool:
        """It would meet others of its kind on the nodes: one at a time."""
        return bool(self.partition) or any("gpu" in option or "gres" in option for option in self.options)


@dataclass
class Workload:
    jobs: list[JobRecord] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Workload:
        jobs = []
        for job in data["jobs"]:
            steps = [Step(**step) for step in job["steps"]]
            after = tuple(job["dependency"]) if job["dependency"] else None
            jobs.append(JobRecord(**{**job, "steps": steps, "dependency": after}))
        return cls(jobs)


def make(pick: Pick) -> Workload:
    workload = Workload()
    for name in "abc"[: pick([1, 1, 2, 3])]:
        workload.jobs.append(_job(pick, name, [job.name for job in workload.jobs]))
    return workload


def _job(pick: Pick, name: str, earlier: list[str]) -> JobRecord:
    steps = [Step(pick(STEP_OPTIONS), pick(PROGRAMS)) for _ in range(pick([1, 0, 2]))]
    options = [*pick(LAYOUTS), *pick(OUTPUTS), *pick(MISC)]
    job = JobRecord(name, options, steps, pick(ENDS))
    if earlier and pick([False, True]):
        job.dependency = (pick(CONDITIONS), pick(earlier), pick([False, True]))
    if pick([False, True]) and not job.dependency:
        _hold(pick, job)
    else:
        job.array = pick(ARRAYS)
    if job.array:  # its elements must not write into one file
        job.options = [o for o in job.options if "%x" not in o and "missing" not in o and o not in ("-o", "-e")]
        for step in job.steps:
            step.options = [option.replace("%s", "%J") for option in step.options]
    return job


def _hold(pick: Pick, job: JobRecord) -> None:
    """Let it wait for what will be done to it: in the batch script, or in a step."""
    job.action, how = pick(ACTIONS), pick(HOLDS)
    if job.action == "preempt":
        job.partition = pick(["low0", "low"])
    if "USR1" in job.action:
        how = pick([f"trap 'echo USR1; exit 8' USR1; {hold}" for hold in HOLDS])
    if "missing" in " ".join(job.options):
        job.options = [option for option in job.options if "missing" not in option]
    if job.action == "step" or pick([True, False]):
        deaf = "TERM; hold" in how and "exit 7" not in how  # it is killed, and the script hears or sees it first
        job.before = "" if deaf else pick(["", "trap 'echo batch heard' TERM"])
        job.steps = [Step(pick([[], ["--label"], ["-K"], ["-n1"]]), [how], pick([False, True]))]
    else:
        job.before = how
