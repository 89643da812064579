"""ScriptSpec: a config translated into the values of a script. The module reads no file and no clock, and of the
environment only the variables of sbatch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterdp.batch.files.rules import Rules
from clusterdp.config.tree import Config, ContainerConfig, ResourcesConfig
from clusterdp.errors import ConfigError

# Options of sbatch that have the same name in the config, in the order in which they are printed.
PLAIN = ("partition", "account", "qos", "constraint", "nodelist", "exclude", "reservation", "gres", "mem", "time")

# Backslashes that a shell drops, but shlex.split() keeps: at the end of a line, and in double quotes before $ and `.
BACKSLASHES = re.compile(r"(?P<kept>'[^']*'|\\[^\n])|\"(?P<quoted>(?:\\.|[^\"\\])*)\"|\\\n", re.DOTALL)

READ_BY_SRUN = {  # variable -> the options of sbatch that set the variable
    "SLURM_MEM_PER_CPU": {"mem-per-cpu"},
    "SLURM_MEM_PER_GPU": {"mem-per-gpu"},
    "SLURM_CPUS_PER_GPU": {"cpus-per-gpu"},
    "SLURM_GPUS": {"gpus"},
    "SLURM_GPUS_PER_NODE": {"gpus-per-node"},
    "SLURM_GPUS_PER_SOCKET": {"gpus-per-socket"},
    "SLURM_GPUS_PER_TASK": {"gpus-per-task"},
    "SLURM_NTASKS_PER_GPU": {"ntasks-per-gpu"},
    "SLURM_GPU_BIND": {"gpu-bind"},
    "SLURM_UNBUFFEREDIO": set(),  # a line in a log would end where a write ends
    "SLURM_TRES_BIND": {"tres-bind", "gpu-bind", "gpus-per-task"},
}


@dataclass(frozen=True)
class ArraySpec:
    """A job array, which runs the elements of a sweep or some of them."""

    offset: int  # number of the array's first element
    size: int  # number of the array's elements
    part: int = 1000  # a power of ten; `offset` is a multiple of `part`
    parallel: int | None = None  # how many elements run at a time

    @property
    def indices(self) -> str:
        """The value of sbatch's option --array."""
        return f"0-{self.size - 1}" + (f"%{self.parallel}" if self.parallel else "")


@dataclass(frozen=True)
class ScriptSpec:
    config: Config
    kind: str  # entry, command or script
    run_dir: Path  # absolute path; for an array, the sweep's folder
    submit_dir: Path  # absolute
    python: str
    code: Path | None = None  # the snapshot, if it is not in run_dir but in a sweep's folder
    array: ArraySpec | None = None
    host_python: str = ""  # the interpreter that is tried first for the batch program

    @property
    def work_dir(self) -> Path:
        """The working folder of the ranks: the snapshot, so that edits and checkouts have no effect on a waiting
        job."""
        return (self.code or self.run_dir / "code") if self.config.snapshot.enabled else self.submit_dir

    @property
    def archive(self) -> str:
        """The archive of launch.environment; empty without one."""
        named = self.config.launch.environment
        return str(self.submit_dir / Path(named).expanduser()) if named else ""

    @property
    def clusters(self) -> str:
        """The value of sbatch's option --clusters; empty if the config does not set the option."""
        extra = self.config.resources.extra
        return str(extra.get("clusters") or extra.get("cluster") or "")

    @property
    def checkpoint_url(self) -> str:
        return self.config.checkpoint.url or str(self.run_dir / "checkpoints")

    @property
    def output(self) -> str:
        """The value of sbatch's option --output. An element's folder has the element's number as its name, composed
        from the array's index: `2%3a` for element 2005."""
        folder = str(self.run_dir).replace("%", "%%")
        if self.array is None:
            return f"{folder}/slurm-%j.out"
        part, offset = self.array.part, self.array.offset
        element = f"{offset // part}%{len(str(part)) - 1}a" if offset else "%a"
        return f"{folder}/{element}/slurm-%A_%a.out"

    @property
    def is_torchrun(self) -> bool:
        return self.config.launch.launcher == "torchrun"

    @property
    def ranks_per_node(self) -> int:
        resources = self.config.resources
        return resources.tasks_per_node or gpu_count(resources.gpus_per_node) or 1

    @property
    def tasks_per_node(self) -> int:
        """The tasks of srun on each node: ranks, or torchrun's agent."""
        return 1 if self.is_torchrun else self.ranks_per_node

    @property
    def command(self) -> list[str]:
        """The words of the program's command line. With torchrun, words that begin with a `.py` file (or -m) are a
        Python program, as for torchrun itself."""
        words = words_of(self.config.command, "command")
        if self.is_torchrun and words and (words[0].endswith(".py") or words[0] == "-m"):
            return [self.python, "-u", *words]
        return words

    @property
    def signal(self) -> str | None:
        """The value of sbatch's option --signal. By default only entry jobs get a signal, because a signal kills a
        program that does not handle it."""
        if self.config.launch.signal or self.kind != "entry":
            return self.config.launch.signal
        return f"USR2@{self.config.launch.grace_s}"

    @property
    def warned_s(self) -> int:
        """The seconds before the time limit in which the signal of --signal may have come; 0 without the option. Slurm
        may send the signal up to 60 s early, and sends it 60 s before the limit if the option has no number."""
        if not self.signal:
            return 0
        seconds = self.signal.partition("@")[2]
        return 60 + (int(seconds) if seconds.isdecimal() else 60)

    @property
    def restarts_in_place(self) -> bool:
        """Whether the batch program starts the ranks again after a fault. Then it ends the step after the first failed
        task itself: with --kill-on-bad-exit=1, tasks that ignore TERM would live on for Slurm's KillWait."""
        restart = self.config.restart
        return restart.in_place and restart.requeue and self.config.backend != "submitit"

    @property
    def warm_after_s(self) -> float | None:
        """The seconds until ranks for the next attempt wait with torch loaded, beside those of an entry; None: never. A
        container, or a program of a template, would start twice on each node."""
        return self.config.restart.warm_after_s if self.restarts_in_place and self._is_plain else None

    @property
    def has_fork_server(self) -> bool:
        """Whether the ranks of a node are forked from one process. Slurm may let each task see other GPUs if the
        request is for GPUs of a task."""
        resources, is_ours = self.config.resources, self.config.backend != "submitit" and self._is_plain
        return self.config.launch.fork_server and is_ours and self.ranks_per_node > 1 and not resources.gpus_per_task

    @property
    def _is_plain(self) -> bool:
        """Whether each task is an entry's rank, started by our own script outside of a container."""
        launch = self.config.launch
        return self.kind == "entry" and not (self.is_torchrun or launch.container.image or launch.template)

    @property
    def may_lose_nodes(self) -> bool:
        """Whether the ranks start again in the job without nodes that it has lost: on spare ones, or on fewer."""
        r = self.config.resources
        sizes = r.sizes if r.is_elastic else []
        return Rules(sizes=sizes, spare_nodes=r.spare_nodes, in_place=self.restarts_in_place).may_lose_nodes

    @property
    def no_kill(self) -> bool:
        """Whether the job goes on without a node that it has lost."""
        return self.may_lose_nodes or self.config.resources.extra.get("no-kill") not in (None, False, "off")

    @property
    def keeps_copies(self) -> bool:
        """Whether each node has a keeper, which holds copies of the state in memory."""
        return self.config.checkpoint.memory_s != 0 and self.config.backend != "submitit"

    def directives(self) -> list[tuple[str, str | None]]:
        """Returns `(option, value)` for each #SBATCH line. The value None stands for an option without a value."""
        r, tasks = self.config.resources, self.tasks_per_node
        cpus = r.cpus_per_task * self.ranks_per_node // tasks
        rows: list[tuple[str, str | None]] = [
            ("job-name", self.config.name),
            ("nodes", re.sub("[0-9]+", lambda number: str(int(number[0]) + r.spare_nodes), str(r.nodes))),
            ("ntasks-per-node", str(tasks)),
            ("cpus-per-task", str(cpus)),
            ("gpus-per-node", r.gpus_per_node if gpu_count(r.gpus_per_node) else None),
            ("gpus-per-task", r.gpus_per_task),
            *((name, getattr(r, name)) for name in PLAIN),
            ("signal", self.signal),
            ("array", self.array.indices if self.array else None),
            ("output", self.output),
            ("open-mode", "append"),
        ]
        flags: list[tuple[str, str | None]] = [("exclusive", None)] if r.exclusive else []
        if self.may_lose_nodes:
            flags.append(("no-kill", None))
        flags.append(("requeue" if self.config.restart.requeue else "no-requeue", None))
        return [row for row in rows if row[1] is not None] + flags + extra_options(r)

    def foreign_variables(self) -> list[str]:
        """Returns the variables that srun reads, but this job does not set. With the values of an outer job, a step
        would be refused, or bound to other GPUs. (24.11 and later set SLURM_TRES_PER_TASK in each job with
        --cpus-per-task.)"""
        asked = {option for option, _ in self.directives()}
        return [name for name, options in READ_BY_SRUN.items() if asked.isdisjoint(options)]

    def container_mounts(self) -> list[str]:
        """Returns the container's mounts, which are the run folder and the user's mounts: `source:target[:ro]`."""
        own = [self.run_dir] if self.run_dir in self.work_dir.parents else [self.run_dir, self.work_dir]
        return [*(f"{path}:{path}" for path in own), *self.config.launch.container.mounts]

    def srun_flags(self) -> list[str]:
        """Returns the options of srun for the GPUs of each rank, and for Pyxis' container."""
        flags = []
        if self.config.resources.gpus_per_task:
            flags.append(f"--gpus-per-task={self.config.resources.gpus_per_task}")
        container: ContainerConfig = self.config.launch.container
        if container.image and container.runtime == "pyxis":
            flags += [
                f"--container-image={container.image}",
                f"--container-mounts={','.join(self.container_mounts())}",
                f"--container-workdir={self.work_dir}",
                "--no-container-mount-home",
            ]
        return flags

    @property
    def fills_sockets(self) -> bool:
        """Whether ranks fill a node's sockets one after the other, in the order in which GPUs are numbered. By default
        the ranks alternate between the sockets, and half of the ranks would copy through the other socket's memory."""
        r = self.config.resources
        has_gpus = bool(r.gpus_per_task or gpu_count(r.gpus_per_node))
        return has_gpus and self.ranks_per_node > 1 and "distribution" not in r.extra

    def preflight_flags(self) -> list[str]:
        """Returns srun_flags() for the preflight step, whose single task on a node sees the GPUs of all ranks of the
        node."""
        own = f"--gpus-per-task={self.config.resources.gpus_per_task}"
        kind, colon, each = (self.config.resources.gpus_per_task or "").rpartition(":")
        of_all = f"--gpus-per-node={kind}{colon}{int(each) * self.ranks_per_node if each.isdigit() else each}"
        return [of_all if flag == own else flag for flag in self.srun_flags()]

    def container_prefix(self) -> list[str]:
        """Returns the words before the program's own words that run the program in an Apptainer container."""
        container = self.config.launch.container
        if not container.image or container.runtime != "apptainer":
            return []
        words = ["apptainer", "exec"]
        if self.config.resources.gpus_per_node or self.config.resources.gpus_per_task or self.config.resources.gres:
            words.append("--rocm" if container.gpus == "amd" else "--nv")
        for mount in self.container_mounts():
            words += ["--bind", mount]
        return [*words, "--pwd", str(self.work_dir), container.image]


# The variables of sbatch that count where the config has no value: many sites have users set them
OF_SBATCH = {
    f"SBATCH_{key.upper()}": key for key in ("account", "partition", "qos", "reservation", "constraint", "gres")
}
OF_SBATCH["SBATCH_TIMELIMIT"] = "time"


def with_environ(config: Config) -> Config:
    """Returns the config with the values of OF_SBATCH that it leaves open. The script has them as options."""
    left = {name: key for name, key in OF_SBATCH.items() if getattr(config.resources, key) is None}
    given: dict[str, Any] = {key: os.environ[name] for name, key in left.items() if os.environ.get(name)}
    return replace(config, resources=replace(config.resources, **given)) if given else config


def unused_variables(environ: Mapping[str, str]) -> str:
    """Returns a line with the variables of sbatch that have no effect; empty if there are none."""
    names = ", ".join(sorted(name for name in environ if name.startswith("SBATCH_") and name not in OF_SBATCH))
    return f"{names}: no effect on this job. Write the option below resources:, or resources.extra." if names else ""


def make_spec(config: Config, run_dir: Path, submit_dir: Path, python: str, code: Path | None = None) -> ScriptSpec:
    """Returns the spec for a config. `code` is the snapshot, if the snapshot is not in the run folder itself."""
    config = with_environ(config)
    kind = next(kind for kind in ("entry", "command", "script") if getattr(config, kind) not in (None, "", []))
    chosen = config.launch.python or ("python" if config.launch.environment else python)
    spec = ScriptSpec(config, kind, run_dir.absolute(), submit_dir.absolute(), chosen, code)
    spec = replace(spec, host_python=config.launch.host_python or python)
    if kind == "command" and not spec.command:
        raise ConfigError("command: has no words. Name a program and its arguments.")
    return spec


def words_of(value: Any, key: str) -> list[str]:
    """Returns the words of a command: a list stays as it is; a string is split as by a shell, but without any
    expansion."""
    if isinstance(value, str):
        try:
            return shlex.split(BACKSLASHES.sub(_as_shlex_reads, value))
        except ValueError as error:
            raise ConfigError(f"{key}: {value!r} cannot be split into words: {error}. Write a list of words.") from None
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        bad = next((word for word in value if "\0" in word), None)
        if bad is None:
            return list(value)
        raise ConfigError(f"{key}: {bad!r} has a NUL character, which no program can be given. Remove it.")
    if value is None:
        return []
    raise ConfigError(f"{key}: {value!r} is neither a string nor a list of words. Write e.g. [python, train.py].")


def _as_shlex_reads(found: re.Match[str]) -> str:
    if found["quoted"] is None:
        return found["kept"] or ""
    dropped = re.sub(r"\\(?:\n|([$`])|(.))", lambda each: each[1] or (each[2] and each[0]) or "", found["quoted"])
    return f'"{dropped}"'


def lines_of(value: Any, key: str) -> str:
    """Returns bash lines as one text, whether the config has a string or a list of lines."""
    if value is None or isinstance(value, str):
        return (value or "").rstrip("\n")
    if isinstance(value, Sequence) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise ConfigError(f"{key}: {value!r} is neither text nor a list of lines. Write bash lines after `{key}: |`.")


def gpu_count(text: str | None) -> int:
    """Returns the number of GPUs in `4` or `a100:4`."""
    if text is None:
        return 0
    last = text.rsplit(":", 1)[-1]
    if not last.isdigit():
        raise ConfigError(f"resources.gpus_per_node: {text!r} has no number. Write e.g. 4 or a100:4.")
    return int(last)


def extra_options(resources: ResourcesConfig) -> list[tuple[str, str | None]]:
    """Returns the options of resources.extra. The value true makes an option without a value; false and null leave the
    option out."""
    return [
        (option, None if value is True else str(value))
        for option, value in resources.extra.items()
        if value is not None and value is not False
    ]
