"""The config tree: what a user can write in the YAML file, and `load`, which reads it.

Precedence, weakest first: defaults (here), the site profile, the file, `key=value` words of the command line.
Units are in the names; fields that are Slurm's have Slurm's word and form.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp.errors import ConfigError

if TYPE_CHECKING:
    from clusterdp.configfile import Layer


TEXT = {"text": True}  # its scalars are taken as they are written, not as numbers or truth values


@dataclass
class Resources:
    """What is asked of Slurm, in Slurm's words: `cpus_per_task` is `--cpus-per-task`."""

    nodes: int = 1
    tasks_per_node: int | None = None  # ranks on each node; default: one a GPU, else 1
    cpus_per_task: int = 1  # for each rank, whatever the launcher
    gpus_per_node: str | None = None  # `4`, or with a type `a100:4`
    gpus_per_task: str | None = None  # each rank then sees only its own
    mem: str | None = None  # of a node: `64G`; `0` is all of it
    time: str | None = None  # `2:00:00`, `1-00:00:00`, `90` (minutes); default: the partition's
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    reservation: str | None = None
    gres: str | None = None
    exclusive: bool = False
    extra: dict[str, Any] = field(
        default_factory=dict
    )  # any other option of sbatch: {mail-type: END, spread-job: true}


@dataclass
class Container:
    image: str | None = None  # Pyxis: `nvcr.io#nvidia/pytorch:24.10-py3` or a .sqsh; Apptainer: a .sif
    runtime: str = "pyxis"  # pyxis | apptainer
    mounts: list[str] = field(default_factory=list)  # `/data:/data[:ro]`; the run folder is always mounted


@dataclass
class Launch:
    launcher: str = "srun"  # srun: one task a rank | torchrun: one agent a node
    template: str | None = None  # your own script template instead of ours
    python: str | None = None  # the interpreter for `entry:` jobs; default: the one that submits
    env: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    setup: Any = field(default=None, metadata=TEXT)  # bash lines, run once, on the first node, before the ranks
    signal: str | None = None  # `USR2@90`: a warning before the end of the time; entry jobs get one unasked
    grace_s: int = 60  # entry jobs stop this long before the end of the time
    container: Container = field(default_factory=Container)


@dataclass
class Snapshot:
    """What of the submit directory is copied to the run folder: what git knows or does not ignore."""

    enabled: bool = True  # false: the job runs in the submit directory, as it is when each attempt starts
    max_mb: int = 100
    link: list[str] = field(default_factory=list)  # paths that are linked, not copied: data, outputs


@dataclass
class Checkpoint:
    url: str | None = None  # default: checkpoints/ in the run folder
    every_steps: int | None = None
    every_s: float | None = 600.0
    storage_options: dict[str, Any] = field(default_factory=dict)  # of fsspec's file system: endpoint_url, ...
    timeout_s: float = 60.0  # for one answer of a store
    retry_s: float = 120.0  # so long is a store that is away asked again, before a save has failed
    keep_last: int = 3
    keep_every: int | None = None  # and of all commits every so-manyth
    keep_local: int = 0  # commit to the run folder, keep so many there, and copy to url whenever the store is there
    async_save: bool = True  # write while the training goes on; the save before a stop is waited for
    max_failures: int = 3  # so many periodic saves in a row may fail (a full disk); one more ends the attempt
    check_replicas_every: int = 10  # at the first of so many saves, ranks whose state differs end the attempt; 0: never
    start_from: str | None = None  # a torch.save file or DCP folder, taken while the run has no checkpoint of its own
    start_only: list[str] = field(default_factory=list)  # what of the state to take from there: [model]; default: all


@dataclass
class Restart:
    requeue: bool = True  # false: `--no-requeue`, and the job ends where it is stopped
    max_crashes: int = 3  # so often is a crash tried again; preemptions and time-outs are free
    max_no_progress: int = 5  # entry jobs: attempts in a row without a newer checkpoint
    from_step: int | None = None  # go on from this checkpoint (set by `resume --from`)


@dataclass
class Amp:
    """Mixed precision, for code that takes `job.amp`."""

    level: str = "O0"  # O0: fp32 | O1: autocast to fp16 | O2: fp16 with fp32 masters | O3: fp16 | bf16: autocast
    loss_scale: Any = None  # dynamic | a number; default: dynamic for O1 and O2, none for the others
    keep_batchnorm_fp32: bool | None = None  # default: true for O2, false for O3
    init_scale: float = 65536.0  # where a dynamic scale begins
    growth_interval: int = 2000  # steps without an overflow before it is doubled


@dataclass
class Train:
    """Of `entry:` jobs and own_job(): the process group, the seeds, and what job.wrap(model) and job.loop(...) do."""

    seed: int = 0
    deterministic: bool = False
    backend: str | None = None  # default: nccl if each rank has a GPU, else gloo
    timeout_s: float = 1800.0
    strategy: str = "ddp"  # ddp | fsdp: sharded | hsdp: sharded within each node | dp: one process, the last resort
    ddp: dict[str, Any] = field(default_factory=dict)  # DistributedDataParallel's own: {bucket_cap_mb: 50, ...}
    comm_hook: str | None = None  # fp16 | bf16 | powersgd: gradients travel in fewer bytes
    powersgd: dict[str, Any] = field(default_factory=dict)  # PowerSGDState's: {matrix_approximation_rank: 2, ...}
    fsdp: dict[str, Any] = field(default_factory=dict)  # {units: [Block], param_dtype: bfloat16, ...}
    amp: Amp = field(default_factory=Amp)
    accumulate: int = 1  # batches to a step of the optimizer
    clip_norm: float | None = None
    clip_value: float | None = None
    on_nan: str | None = None  # stop | skip (ten in a row at most), when a loss or gradient is not finite
    sync_batchnorm: bool = False  # statistics of the batches of all ranks
    recompute: list[str] = field(default_factory=list)  # gradient checkpointing, for modules of these classes: [Block]
    compile: Any = None  # true, or torch.compile's own arguments: {mode: max-autotune}


@dataclass
class Metrics:
    """What rank 0 logs: always in metrics/ of the run folder, and besides where you look at it, as one run."""

    to: list[str] = field(default_factory=list)  # tensorboard | wandb | mlflow: pip install 'clusterdp[wandb]'
    every_s: float | None = None  # between two records of steps; default: from 0.1 to 5 s, as the run gets older
    options: dict[str, Any] = field(default_factory=dict)  # {wandb: {project: digits}}, as wandb.init() has them


@dataclass
class Trace:
    """Some steps as torch.profiler sees them, in the folder of each attempt, for https://ui.perfetto.dev."""

    start: int | None = None  # the first step of an attempt that is traced; default: none is
    steps: int = 5
    ranks: list[int] = field(default_factory=lambda: [0])


@dataclass
class Profile:
    """Of entry: jobs. Where the time goes is always measured; see times.json of an attempt."""

    steps: int | None = None  # end after so many steps, as a run of `clusterdp profile` does
    find: str | None = None  # batch-size | workers: tried out after that, by `clusterdp profile --find`
    trace: Trace = field(default_factory=Trace)


@dataclass
class Local:
    """The fake cluster of `--cluster local`; a real Slurm never sees this."""

    preempt_at: float | None = None  # rehearse: preempt the job once, at this fraction of its steps
    cpus_per_node: int = 8


@dataclass
class Config:
    name: str = "job"
    entry: str | None = None  # `package.module:function`, called as function(job, **params)
    command: Any = field(default=None, metadata=TEXT)  # any program: words, or a string split into words; no shell
    script: Any = field(default=None, metadata=TEXT)  # bash lines, for who needs a shell
    params: dict[str, Any] = field(default_factory=dict)
    backend: str = "sbatch"  # sbatch | submitit
    run_dir: str | None = None  # default: runs/<name>-<date>-<time>-<4 letters>
    resources: Resources = field(default_factory=Resources)
    launch: Launch = field(default_factory=Launch)
    snapshot: Snapshot = field(default_factory=Snapshot)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    restart: Restart = field(default_factory=Restart)
    train: Train = field(default_factory=Train)
    metrics: Metrics = field(default_factory=Metrics)
    profile: Profile = field(default_factory=Profile)
    local: Local = field(default_factory=Local)


@dataclass(frozen=True)
class Loaded:
    """A config, and where each value that is no default came from: dotted key -> `cfg.yaml:7`."""

    config: Config
    sources: Mapping[str, str]


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """The config of a YAML file and `key=value` words. ConfigError names file, line, key, mistake and remedy."""
    return load_with_sources(path, overrides).config


def load_with_sources(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Loaded:
    from clusterdp import configfile

    file = Path(path)
    profile = site_profile()
    layers = [configfile.read_file(profile, Config)] if profile else []
    layers += [configfile.read_file(file, Config, name=file.stem), configfile.read_words(overrides, Config)]
    return _resolve(layers)


def from_mapping(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The config of a plain dictionary, as Python code passes it."""
    from clusterdp import configfile

    profile = site_profile()
    layers = [configfile.read_file(profile, Config)] if profile else []
    layers += [configfile.read_mapping(values, Config), configfile.read_words(overrides, Config)]
    return _resolve(layers).config


def _resolve(layers: Sequence[Layer]) -> Loaded:
    """Merge, convert to the types of the tree, resolve `${...}`: OmegaConf's work; then our own checks."""
    from omegaconf import OmegaConf  # 80 ms: only who loads a config pays
    from omegaconf.errors import OmegaConfBaseException

    from clusterdp import configcheck, configfile

    sources = {key: place for layer in layers for key, place in layer.sources.items()}
    values: dict[str, Any] = {}
    for layer in layers:
        configfile.merge(values, layer.values)
    try:
        given = OmegaConf.create(values)
        if missing := OmegaConf.missing_keys(given):
            raise ConfigError(f"{min(missing)}: has no value (???). Give one: {min(missing)}=VALUE.")
        # Unsafe, and without copies: nobody else holds these trees.
        schema = OmegaConf.structured(Config, flags={"no_deepcopy_set_nodes": True})
        config = OmegaConf.to_object(OmegaConf.unsafe_merge(schema, given))
    except OmegaConfBaseException as error:
        raise explain(error, sources) from None
    assert isinstance(config, Config)
    configcheck.check(config, sources)
    return Loaded(config, sources)


def explain(error: Exception, sources: Mapping[str, str]) -> ConfigError:
    """OmegaConf's error in one line, with the place and the remedy."""
    key = str(getattr(error, "full_key", None) or getattr(error, "key", None) or "config")
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    place = f"{sources[key]}: " if key in sources else ""
    missing = re.search(r"(?:Interpolation key '|Unsupported interpolation type )([A-Za-z_]\w*)(?:' not found|$)", said)
    if missing:
        name = missing[1]
        return ConfigError(
            f"{place}{key}: ${{{name}}} names no key of this file. If it is a variable of the shell, write ${{oc.env:"
            f"{name}}} to fill it in at submit, or \\${{{name}}} to leave it to the shell (script:, launch.setup:)."
        )
    if "Grammar" in type(error).__name__ or re.search(r"Interpolation key '[^']*[^\w.'][^']*' not found", said):
        return ConfigError(f"{place}{key}: a ${{...}} there is no interpolation. For a shell, write it as \\${{...}}.")
    return ConfigError(f"{place}{key}: {said.rstrip('.')}. Correct the value.")


def site_profile() -> Path | None:
    """$CLUSTERDP_SITE, else site.yaml in the user's, else in the machine's configuration folder."""
    named = os.environ.get("CLUSTERDP_SITE")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"CLUSTERDP_SITE: no such file: {named}. Correct or unset it.")
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    for folder in (Path(home, "clusterdp"), Path("/etc/clusterdp")):
        if (folder / "site.yaml").is_file():
            return folder / "site.yaml"
    return None


def dump(config: Config) -> str:
    """The resolved config as YAML text, which `read_resolved` reads back."""
    import yaml

    text: str = yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True, width=100)
    return text


def read_resolved(path: Path) -> dict[str, Any]:
    """What `dump` wrote, as plain dictionaries and lists: for the compute node, where omegaconf need not be loaded.
    ConfigError if somebody has written something else there."""
    import yaml

    try:
        with path.open(encoding="utf-8") as file:
            return dict(yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: is not the config of a run. Put back what submit wrote there.") from None
