"""From options to a JobSpec: what each word means, and the texts with which sbatch and srun refuse one."""

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterdp.slurm.hostlist import HostlistError, expand

from . import times
from .options import IDLE, PER_COMPONENT, UNSUPPORTED
from .refusals import INVALID_GRES, INVALID_NODE, ControllerError, Refusal
from .spec import Gpus, JobSpec

BAD = 255  # the exit status for an option that the command itself cannot read


@dataclass
class Asked:
    """Options with their values; of repeated ones the last wins."""

    command: str
    values: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    def add(self, pairs: list[tuple[str, str]]) -> None:
        """Later ones win over earlier ones."""
        for name, value in pairs:
            if name in UNSUPPORTED:
                raise self.bad(f"--{name} is not supported by this fake cluster")
            if name in ("requeue", "no-requeue"):
                self.values.pop("requeue", None)
                self.values.pop("no-requeue", None)
            if name == "mem-per-cpu":
                self.values.pop("mem", None)
            if name == "mem":
                self.values.pop("mem-per-cpu", None)
            self.values[name] = value

    def after(self) -> "Asked":
        """What the next component of a heterogeneous job begins with."""
        kept = {name: value for name, value in self.values.items() if name not in PER_COMPONENT}
        return Asked(self.command, kept)

    def bad(self, text: str) -> Refusal:
        return Refusal(f"{self.command}: error: {text}", BAD)

    def invalid(self, name: str) -> Refusal:
        return self.bad(f"Invalid --{name} specification")

    def number(self, name: str, least: int = 1) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise self.bad(f'Invalid numeric value "{text}" for --{name}.')
        return int(text)

    def nodes(self) -> tuple[int, int | None] | None:
        """(least, most)."""
        text = self.values.get("nodes")
        if text is None:
            return None
        match = re.fullmatch(r"(\d+)([kKmM]?)(?:-(\d+)([kKmM]?))?", text)
        if not match or not int(match[1]) or (match[3] and int(match[3]) < int(match[1])):
            raise self.bad(f'"{text}" is not a valid node count')
        low = int(match[1]) * _scale(match[2])
        return low, int(match[3]) * _scale(match[4]) if match[3] else low

    def megabytes(self, name: str) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        match = re.fullmatch(r"(\d+)([kKmMgGtT]?)[bB]?", text)
        if not match:
            raise self.invalid(name)
        return -(-int(match[1]) * {"": 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}[match[2].lower()] // 1024)

    def minutes(self, name: str = "time") -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        try:
            return times.minutes(text)
        except times.BadTime:
            raise self.invalid(name) from None

    def hosts(self, name: str) -> list[str]:
        text = self.values.get(name)
        if not text:
            return []
        try:
            return list(dict.fromkeys(expand(text)))
        except HostlistError:
            raise ControllerError(INVALID_NODE) from None

    def warning_signal(self) -> tuple[int, int, bool] | None:
        """--signal=[R][B]:SIGNAL[@SECONDS] -> (number, seconds, to the batch shell only)."""
        text = self.values.get("signal")
        if text is None:
            return None
        match = re.fullmatch(r"(?:([RrBb]{1,2}):)?(\w+)(?:@(\d+))?", text)
        number = signal_number(match[2]) if match else None
        if not match or not number or int(match[3] or 60) > 65535:
            raise self.invalid("signal")
        return number, int(match[3] or 60), "B" in (match[1] or "").upper()

    def exclusive(self) -> bool:
        value = self.values.get("exclusive")
        if value not in (None, "", "user", "mcs"):
            raise self.invalid("exclusive")
        return value is not None

    def gpus(self) -> Gpus:
        gpus = Gpus(
            per_job=self._gpu_count("gpus"),
            per_node=self._gpu_count("gpus-per-node"),
            per_task=self._gpu_count("gpus-per-task"),
        )
        gres = self.values.get("gres")
        if gres is not None and gres.lower() != "none":
            gpus.gres = gres
            for part in gres.split(","):
                count = _gres(part)
                if count is None:
                    raise Refusal(f"{self.command}: error: {INVALID_GRES}", 1)
                gpus.per_node = count
        return gpus

    def _gpu_count(self, name: str) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        count = _count_of(text)
        if count is None:
            raise self.invalid(name)
        return count


TYPED = 1 << 20  # more GPUs of a type than there are: none has a type here


def _gres(part: str) -> int | None:
    match = re.fullmatch(r"(?:gres[:/])?gpu(?:[:=](.+))?", part)
    return _count_of(match[1] or "1") if match else None


def _count_of(text: str) -> int | None:
    """`2`, `a100:2`, `a100`."""
    kind, _, count = text.rpartition(":")
    if not count.isdigit():
        return None if kind else TYPED
    return TYPED if kind and int(count) else int(count)


def _scale(letter: str | None) -> int:
    return {"": 1, "k": 1024, "m": 1024**2}[(letter or "").lower()]


def signal_number(text: str) -> int | None:
    """USR1, SIGUSR1, usr1, 10."""
    if text.isdigit():
        return int(text) or None
    name = text.upper().removeprefix("SIG")
    found = getattr(signal, f"SIG{name}", None)
    return int(found) if isinstance(found, signal.Signals) else None


def job_spec(asked: Asked, folder: str, partition: str, warn: Callable[[str], None]) -> JobSpec:
    """What the options ask for; raises Refusal for what cannot be read, ControllerError for what is refused."""
    nodes, tasks, per_node = asked.nodes(), asked.number("ntasks"), asked.number("ntasks-per-node", 0)
    if nodes and tasks and tasks < nodes[0]:
        warn(f"{asked.command}: Warning: can't run {tasks} processes on {nodes[0]} nodes, setting nnodes to {tasks}")
        nodes = (tasks, tasks)
    nodelist = asked.hosts("nodelist")
    if nodes and nodelist and nodes[1] is not None and len(nodelist) > nodes[1]:
        raise Refusal(f"{asked.command}: error: invalid number of nodes (-N {len(nodelist)}-{nodes[1]})")
    if nodes and per_node and tasks is None:
        tasks = nodes[0] * per_node
    spec = JobSpec(name=asked.get("job-name") or "", partition=partition, folder=folder)
    if nodes:
        spec.min_nodes, spec.max_nodes, spec.nodes_asked = nodes[0], nodes[1], True
    elif nodelist:
        spec.min_nodes = len(nodelist)
    spec.tasks, spec.tasks_per_node = tasks, per_node or None
    spec.cpus_per_task = asked.number("cpus-per-task")
    spec.gpus = asked.gpus()
    if spec.gpus.per_task and spec.tasks is None and spec.gpus.per_job:
        spec.tasks = spec.gpus.per_job // spec.gpus.per_task
    spec.gpus_option, spec.gpus_per_node_option = asked.get("gpus"), asked.get("gpus-per-node")
    spec.gpus_per_task_option = asked.get("gpus-per-task")
    spec.mem_per_node, spec.mem_per_cpu = asked.megabytes("mem"), asked.megabytes("mem-per-cpu")
    spec.minutes = asked.minutes()
    spec.exclusive = asked.exclusive()
    spec.nodelist, spec.exclude = nodelist, asked.hosts("exclude")
    spec.features = asked.get("constraint")
    _life(asked, spec)
    spec.distribution = asked.get("distribution")
    spec.output, spec.error, spec.input = asked.get("output"), asked.get("error"), asked.get("input")
    spec.open_mode = _open_mode(asked)
    spec.shown = {name: value for name, value in asked.values.items() if name in IDLE and value}
    return spec


def _life(asked: Asked, spec: JobSpec) -> None:
    """When it may start, and how it may end."""
    import time

    spec.dependency = asked.get("dependency") or None
    spec.kill_on_invalid_dep = (asked.get("kill-on-invalid-dep") or "").lower() in ("y", "yes")
    begin = asked.get("begin")
    if begin is not None:
        try:
            spec.begin = times.moment(begin, time.time())
        except times.BadTime:
            raise asked.invalid("begin") from None
    spec.hold = "hold" in asked
    nice = asked.get("nice")
    if nice is not None:
        if not re.fullmatch(r"-?\d*", nice):
            raise asked.invalid("nice")
        spec.nice = int(nice or 100)
    spec.priority = asked.number("priority", 0)
    spec.requeue = "no-requeue" not in asked
    spec.no_kill = "no-kill" in asked and asked.get("no-kill") != "off"
    warning = asked.warning_signal()
    if warning:
        spec.signal, spec.signal_s, spec.signal_batch = warning
    spec.comment = asked.get("comment")
    spec.qos = asked.get("qos") or "normal"


def _open_mode(asked: Asked) -> str | None:
    mode = asked.get("open-mode")
    if mode is None:
        return None
    if mode[:1].lower() not in ("a", "t"):
        raise asked.invalid("open-mode")
    return "append" if mode[0].lower() == "a" else "truncate"
