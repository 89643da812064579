"""`clusterdp init`: writes a train script, its config, and a site profile for all runs on this cluster. `clusterdp
configs NAME --to DIR`: writes an example config and its program.

No file is overwritten. The facts about the cluster come from sinfo, scontrol and sacctmgr. If one of these commands
does not answer, its facts are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterdp import config as config_module
from clusterdp.errors import ConfigError, RunError, SlurmError
from clusterdp.slurm import commands
from clusterdp.slurm.associations import Association
from clusterdp.slurm.nodes import NodeGroup
from clusterdp.submission.render.shipped_files import example_files
from clusterdp.wording import counted

TIMEOUT_S = 10.0  # timeout of each Slurm command
TIME = "1:00:00"
TRAIN = "train.py"


@dataclass(frozen=True)
class Site:
    """The facts about the cluster that Slurm's commands print; empty without Slurm."""

    groups: Sequence[NodeGroup] = ()
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # partition -> its limits
    associations: Sequence[Association] = ()

    @property
    def partition(self) -> str:
        """The default partition; if the default partition has no GPUs, a partition with GPUs, if any."""
        usable = [group for group in self.groups if group.up]
        best = sorted(usable, key=lambda group: (group.gpus == 0, not group.is_default, -group.nodes))
        return best[0].partition if best else ""

    def largest(self, partition: str) -> NodeGroup:
        """Returns the largest group of equal nodes in the partition."""
        return max((group for group in self.groups if group.partition == partition), key=lambda group: group.nodes)


@dataclass(frozen=True)
class NewFile:
    path: Path
    text: str


def plan(folder: Path) -> list[NewFile]:
    """Returns the files to write, including files that exist already. Raises RunError if the folder does not exist."""
    if not folder.is_dir():
        raise RunError(f"{folder}: is not a folder. Make it first, or name another.")
    site = look_at_site()
    profile = config_module.site_profile()
    source = Path(__file__).parents[1] / "recipes" / "first.py"
    files = [
        NewFile(folder / TRAIN, source.read_text()),
        NewFile(folder / "train.yaml", train_config(site, profile)),
    ]
    if site.groups:
        files.append(NewFile(profile or config_module.user_profile(), site_config(site)))
    return files


def plan_example(name: str, folder: str) -> list[NewFile]:
    """Returns the files of an example config to write into `folder`. Raises ConfigError if a file of the same name, but
    with other content, is there."""
    files = [NewFile(Path(folder, source.name), source.read_text()) for source in example_files(name)]
    for file in files:
        if file.path.exists() and not (file.path.is_file() and file.path.read_bytes() == file.text.encode()):
            raise ConfigError(f"--to: {file.path} exists, and is not the file of the example. Name another folder.")
    return files


def write(files: Sequence[NewFile]) -> list[str]:
    """Writes the files that do not exist yet. Returns a line about each file: written, or kept."""
    said = []
    for file in files:
        if file.path.exists():
            said.append(f"kept   {file.path}: it was there")
            continue
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            with file.path.open("x") as out:
                out.write(file.text)
        except OSError as error:
            raise RunError(f"{file.path}: cannot be written: {error.strerror}. Name another folder.") from None
        said.append(f"wrote  {file.path}")
    return said


def look_at_site() -> Site:
    if not commands.have_slurm():
        return Site()
    try:
        groups = commands.node_groups(timeout_s=TIMEOUT_S)
        limits = commands.show_partitions(timeout_s=TIMEOUT_S)
    except SlurmError:
        return Site()
    try:
        cluster = commands.show_config(timeout_s=TIMEOUT_S).get("ClusterName", "")
        return Site(groups, limits, commands.associations(cluster, timeout_s=TIMEOUT_S))
    except SlurmError:  # no accounting
        return Site(groups, limits)


def train_config(site: Site, profile: Path | None) -> str:
    lines = [
        "# A training to begin with. `clusterdp show --explain` says what each key means.",
        "#   clusterdp submit train.yaml --cluster local    here, on a fake cluster",
        "#   clusterdp submit train.yaml                    on Slurm",
        "entry: train:main",
        "params: {lr: 0.02, epochs: 20}",
        "",
        "resources:",
        "  nodes: 1",
    ]
    node = site.largest(site.partition) if site.partition else None
    if node and node.gpus:
        kind = f"{node.gpu_type}:" if node.gpu_type else ""
        lines += [f"  gpus_per_node: {kind}{node.gpus}", f"  cpus_per_task: {max(1, node.cpus // node.gpus)}"]
    else:
        lines += ["  tasks_per_node: 2", "  cpus_per_task: 1"]
    lines.append(f'  time: "{_time(node)}"')
    if node:
        where = profile or config_module.user_profile()
        lines.append(f"  # partition and account are in {where}")
    return "\n".join([*lines, "", "checkpoint:", "  every_s: 600", ""])


def site_config(site: Site) -> str:
    """Returns the site profile: the chosen partition, and the other partitions in comments."""
    lines = [
        "# What all runs on this cluster share; a config overrides it. Written by `clusterdp init`, for you to change."
    ]
    lines += ["resources:", f"  partition: {site.partition}"]
    for name in dict.fromkeys(group.partition for group in site.groups):
        lines.append(f"  #   {name}: {_in_words(site, name)}")
    names = list(dict.fromkeys(each.account for each in site.associations))
    if len(names) == 1:
        lines.append(f"  account: {names[0]}")
    elif names:
        lines.append(f"  # account: {names[0]}    yours are {', '.join(names)}; without it, your default one")
    qos = list(dict.fromkeys(name for each in site.associations for name in each.qos))
    if len(qos) > 1:
        lines.append(f"  # qos: {qos[0]}    you may use {', '.join(qos)}")
    return "\n".join([*lines, ""])


def _in_words(site: Site, partition: str) -> str:
    """Returns `12 nodes of 64 CPUs, 504 GB, 4 x a100; at most 2-00:00:00; preempted (REQUEUE, grace 120 s)`, for
    example."""
    groups = [group for group in site.groups if group.partition == partition]
    kinds: dict[tuple[int, int, int, str], int] = {}
    for group in groups:
        kind = (group.cpus, group.memory_mb, group.gpus, group.gpu_type)
        kinds[kind] = kinds.get(kind, 0) + group.nodes
    words = []
    for (cpus, memory, gpus, kind_of_gpu), count in kinds.items():
        gpu = f", {gpus} x {kind_of_gpu or 'GPU'}" if gpus else ""
        words.append(f"{counted(count, 'node')} of {cpus} CPUs, {memory // 1000} GB{gpu}")
    said = ["; ".join(words)]
    if groups[0].time_limit != "infinite":
        said.append(f"at most {groups[0].time_limit}")
    limits = site.limits.get(partition, {})
    if (mode := limits.get("PreemptMode", "OFF")) != "OFF":
        said.append(f"preempted ({mode}, grace {limits.get('GraceTime', '0')} s)")
    if not groups[0].up:
        said.append("down")
    return "; ".join(said)


def _time(node: NodeGroup | None) -> str:
    """Returns the time limit to write: an hour, or the partition's limit if this limit is shorter."""
    short = node is not None and re.fullmatch(r"(0:|00:)?\d{1,2}:\d{2}", node.time_limit)
    return node.time_limit if node is not None and short else TIME
