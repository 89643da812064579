"""The config tree: what a user can write in the YAML file, with the default and one comment for each key.

Units are in the names; fields that are Slurm's have Slurm's word and form.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

TEXT = {"text": True}  # its scalars are taken as they are written, not as numbers or truth values


class Section:
    """Equality and text of every section. dataclass would compile both for each, 3 ms of every verb."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its values change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(eq=False, repr=False)
class ResourcesConfig(Section):
    """The request to Slurm, in Slurm's words: `cpus_per_task` is `--cpus-per-task`."""

    nodes: int = 1  # of the job; e.g. `4`
    tasks_per_node: int | None = None  # ranks on each node; default: one a GPU, else 1; e.g. `8`
    cpus_per_task: int = 1  # for each rank, whatever the launcher; e.g. `12`
    gpus_per_node: str | None = None  # a number, or one with a type; e.g. `a100:4`
    gpus_per_task: str | None = None  # each rank then sees only its own; e.g. `1`
    mem: str | None = None  # of each node, in MB or with K, M, G, T; `0` is all of it; e.g. `64G`
    time: str | None = None  # the time limit: minutes, H:M:S or D-H:M:S; default: the partition's; e.g. `1-12:00:00`
    partition: str | None = None  # one, or several to choose from; default: the cluster's; e.g. `gpu,preemptible`
    account: str | None = None  # which one is charged; default: the user's own; e.g. `vision`
    qos: str | None = None  # quality of service; default: the account's; e.g. `high`
    constraint: str | None = None  # features that nodes must have; e.g. `a100&nvlink`
    nodelist: str | None = None  # nodes that must be among those of the job; e.g. `n[1-4]`
    exclude: str | None = None  # nodes that must not be among them; e.g. `n7`
    reservation: str | None = None  # the name of one of the site's; e.g. `workshop`
    gres: str | None = None  # generic resources of each node, beside GPUs; e.g. `shard:2`
    exclusive: bool = False  # no other jobs on the nodes; e.g. `true`
    # Any other option of sbatch, by its long name: `true` for one without a value; e.g. `{mail-type: END}`
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class ContainerConfig(Section):
    """The container of the ranks; the batch script runs outside."""

    image: str | None = None  # Pyxis: a reference or .sqsh; Apptainer: a .sif; e.g. `nvcr.io#nvidia/pytorch:24.10-py3`
    runtime: str = "pyxis"  # what the cluster has: pyxis or apptainer; e.g. `apptainer`
    # Folders to mount inside, FROM:TO or FROM:TO:ro; the run folder always is; e.g. `[/data:/data]`
    mounts: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class LaunchConfig(Section):
    """How the ranks are started."""

    launcher: str = "srun"  # srun: one task of srun a rank; torchrun: one agent a node; e.g. `torchrun`
    template: str | None = None  # a script template of your own in place of ours; e.g. `mine.sbatch.j2`
    # The interpreter of `entry:` jobs; default: the one that submits; e.g. `/opt/env/bin/python`
    python: str | None = None
    # The interpreter of the batch program, on the first node and outside of any container; default: the one that
    # submits, else the system's. Python 3.6 is enough; e.g. `/usr/libexec/platform-python`
    host_python: str | None = None
    # Variables of the ranks; they are written to job.sbatch, so no secrets; e.g. `{NCCL_DEBUG: WARN}`
    env: dict[str, str] = field(default_factory=dict)
    # Variables of your environment that go with the job and are written to no file; e.g. `[WANDB_API_KEY]`
    secrets: list[str] = field(default_factory=list)
    # Variables that each attempt reads from a file that you alone can read; e.g. `{WANDB_API_KEY: ~/.wandb-key}`
    secret_files: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)  # `module load` of each, before setup; e.g. `[cuda/12.4]`
    # Bash lines, run once, on the first node, before the ranks start; e.g. `source ~/envs/torch/bin/activate`
    setup: Any = field(default=None, metadata=TEXT)
    # record: `clusterdp why` shows the lines of setup that failed. stop: each of them ends the attempt as a crash at
    # its start. A line whose program, file or folder is not there does that in any case; e.g. `stop`
    setup_errors: str = "record"
    # NAME@SECONDS: a signal sent that long before the time limit; entry jobs get one by default; e.g. `USR2@90`
    signal: str | None = None
    # Entry jobs stop this long before the end of the time, and earlier if steps and saves take longer; e.g. `120`
    grace_s: int = 60
    # Look at each node before the ranks start (GPUs, memory, disk, network), and go elsewhere if one fails; e.g. `true`
    preflight: bool = False
    container: ContainerConfig = field(default_factory=ContainerConfig)


@dataclass(eq=False, repr=False)
class SnapshotConfig(Section):
    """The part of the submit directory that is copied to the run folder: files that git knows or does not ignore."""

    enabled: bool = True  # false: the job runs in the submit directory, as it is when each attempt starts; e.g. `false`
    max_mb: int = 100  # a larger snapshot is refused, with the names of what is large; e.g. `500`
    link: list[str] = field(default_factory=list)  # paths that are linked, not copied: data, outputs; e.g. `[data]`


@dataclass(eq=False, repr=False)
class CheckpointConfig(Section):
    """The place of checkpoints, their interval, and how many are kept."""

    url: str | None = None  # a folder, or a URL of fsspec's; default: checkpoints/ of the run; e.g. `s3://bucket/run`
    every_steps: int | None = None  # save every n steps; e.g. `1000`
    every_s: float | None = 600.0  # save every n seconds; null: only by every_steps, and at a stop; e.g. `300`
    # Options of fsspec's file system, but never a secret; e.g. `{endpoint_url: "https://s3.example.org"}`
    storage_options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0  # for one answer of the store; e.g. `120`
    retry_s: float = 120.0  # how long a store that does not answer is retried before a save fails; e.g. `600`
    keep_last: int = 3  # how many of the newest are kept; e.g. `5`
    keep_every: int | None = None  # and every n-th of all commits; e.g. `10`
    # Commit to the run folder first, keep this many there, and copy them to url when the store can be reached; e.g. `2`
    keep_local: int = 0
    async_save: bool = True  # write while the training goes on; only the save before a stop is waited for; e.g. `false`
    max_failures: int = 3  # how many periodic saves in a row may fail before the training waits for one; e.g. `10`
    # Compare the ranks' state at the first of every n saves; the attempt ends if it differs; 0: never; e.g. `10`
    check_replicas_every: int = 1
    # The start of a new run: a file or folder of torch, Hugging Face, accelerate or Lightning; e.g. `old/model.pt`
    start_from: str | None = None
    # what of the state to take from there; default: all; e.g. `[model]`
    start_only: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class PolicyConfig(Section):
    """The policy after an attempt that ended for one cause."""

    limit: int | None = None  # how often the run goes on after such an end; none: always; e.g. `3`
    wait_s: float = 0  # the least time until the next attempt begins, twice as long each time in a row; e.g. `30`
    avoid_node: bool = False  # later attempts run on other nodes, if there are enough; e.g. `true`


@dataclass(eq=False, repr=False)
class RestartConfig(Section):
    """When a job that has ended is started again. For each cause there is a policy: limit, wait_s and avoid_node."""

    requeue: bool = True  # false: `--no-requeue`, and the job ends where it is stopped; e.g. `false`
    # requeue: the same job again; resubmit: a new job after it, where a site forbids requeue; e.g. `resubmit`
    how: str = "requeue"
    # With resubmit: the next job waits in the queue while one runs, up to so many jobs in all; e.g. `5`
    chain: int | None = None
    # How often faults are tried again, crash, start, memory, hung and disk together; exit 126 and 127 once; e.g. `0`
    max_crashes: int = 3
    # How many attempts in a row may make no newer checkpoint; other than entry jobs: exit 75 within a minute; e.g. `3`
    max_no_progress: int = 5
    max_attempts: int | None = None  # of one job and all its requeues, for whatever cause; e.g. `100`
    # No attempt starts after so many allocated hours without a newer checkpoint; default: 48 for entry jobs; e.g. `12`
    max_hours: float | None = None
    from_step: int | None = None  # go on from this checkpoint (set by `resume --from`); e.g. `1000`
    # After so many seconds without progress of the slowest rank a hang is reported, in entry jobs and own_job();
    # default: 5 times the longest step so far, at least 300. The first step, restore, evaluation, save and what is
    # outside of the loop may take longer: up to 0.9 of train.timeout_s where other ranks wait for it. Of command: and
    # script: only where it is set: their program hangs if it prints nothing and uses no CPU time; e.g. `600`
    hang_after_s: float | None = None
    # report: never ends the attempt. restart: ends it as hung with the report. default: ends it as hung once that has
    # lasted twice hang_after_s; in what may take longer, when the collective that waits for it times out; e.g. `report`
    on_hang: str | None = None
    preempted: PolicyConfig = field(default_factory=PolicyConfig)
    timeout: PolicyConfig = field(default_factory=PolicyConfig)
    requeued: PolicyConfig = field(default_factory=PolicyConfig)  # by the program itself, or an administrator
    node_lost: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=10, avoid_node=True))
    crash: PolicyConfig = field(default_factory=PolicyConfig)
    start: PolicyConfig = field(default_factory=partial(PolicyConfig, wait_s=10))  # a crash in the first minute
    memory: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=1))  # out of memory
    hung: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=2, avoid_node=True))
    disk: PolicyConfig = field(default_factory=partial(PolicyConfig, wait_s=60))  # no space left
    # a node failed launch.preflight
    preflight: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=5, avoid_node=True))


# The causes that have a policy.
POLICIES = tuple(each.name for each in fields(RestartConfig) if each.type == "PolicyConfig")


@dataclass(eq=False, repr=False)
class NotifyConfig(Section):
    """The notices on a run, by webhook_file or command. The batch script takes 10 s for it at most, and the job ends as
    it would, whatever comes of that."""

    # The events with a notice: end (done, or stopped as asked), failure (also by a limit of restart:), hang (when it is
    # reported), requeue (each time the run goes on in a new attempt); `[]`: of nothing; e.g. `[failure, hang]`
    on: list[str] = field(default_factory=lambda: ["end", "failure", "hang"])
    # A file that you alone can read, with the address of a webhook: it gets JSON as Slack reads it, {"text": ...}; the
    # file is read when there is something to tell; e.g. `~/.slack-webhook`
    webhook_file: str | None = None
    # Or a program, without a shell: it runs on the job's first node, and reads the text from its standard input; in its
    # environment are CLUSTERDP_EVENT, _CAUSE, _RUN, _JOB, _NAME, _STEP, _EXIT and _TEXT; e.g. `[mail, me@example.org]`
    command: list[str] = field(default_factory=list)

    @property
    def given(self) -> bool:
        """Whether anybody is told of anything."""
        return bool(self.on and (self.webhook_file or self.command))


@dataclass(eq=False, repr=False)
class AmpConfig(Section):
    """Mixed precision, for code that takes `job.amp`."""

    # O0: fp32; O1: autocast to fp16; O2: fp16 with fp32 masters; O3: fp16; bf16: autocast to bf16; e.g. `bf16`
    level: str = "O0"
    loss_scale: Any = None  # dynamic, or a number; default: dynamic for O1 and O2, none for the others; e.g. `128`
    keep_batchnorm_fp32: bool | None = None  # default: true for O2, false for O3; e.g. `true`
    init_scale: float = 65536.0  # the first value of a dynamic scale; e.g. `1024`
    growth_interval: int = 2000  # steps without an overflow before it is doubled; e.g. `500`


@dataclass(eq=False, repr=False)
class TrainConfig(Section):
    """How `entry:` jobs and own_job() train: the process group, the seeds, and what job.wrap(model) and job.loop(...)
    do."""

    seed: int = 0  # of torch, numpy and random; differs by rank; e.g. `1`
    deterministic: bool = False  # torch.use_deterministic_algorithms(); slower; e.g. `true`
    backend: str | None = None  # of the process group; default: nccl if each rank has a GPU, else gloo; e.g. `gloo`
    max_steps: int | None = None  # the training ends there, in the middle of an epoch too; e.g. `1000`
    timeout_s: float = 1800.0  # of a collective that waits for another rank: the attempt ends as hung; e.g. `600`
    # ddp; fsdp: sharded; hsdp: sharded within each node; dp: one process, the last resort; e.g. `fsdp`
    strategy: str = "ddp"
    ddp: dict[str, Any] = field(default_factory=dict)  # DistributedDataParallel's own; e.g. `{bucket_cap_mb: 50}`
    comm_hook: str | None = None  # fp16, bf16 or powersgd: gradients travel in fewer bytes; e.g. `bf16`
    powersgd: dict[str, Any] = field(default_factory=dict)  # PowerSGDState's; e.g. `{matrix_approximation_rank: 2}`
    fsdp: dict[str, Any] = field(default_factory=dict)  # fully_shard's; e.g. `{units: [Block], param_dtype: bfloat16}`
    amp: AmpConfig = field(default_factory=AmpConfig)
    accumulate: int = 1  # batches to a step of the optimizer; e.g. `4`
    clip_norm: float | None = None  # the largest norm of all gradients together; e.g. `1.0`
    clip_value: float | None = None  # the largest element of a gradient; e.g. `0.5`
    # stop, or skip (ten in a row at most), when a loss or gradient is not finite; e.g. `skip`
    on_nan: str | None = None
    sync_batchnorm: bool = False  # statistics of the batches of all ranks; e.g. `true`
    # gradient checkpointing of modules of these classes; e.g. `[Block]`
    recompute: list[str] = field(default_factory=list)
    compile: Any = None  # true, or torch.compile's own arguments; e.g. `{mode: max-autotune}`


@dataclass(eq=False, repr=False)
class MetricsConfig(Section):
    """The metrics that rank 0 logs: always in metrics/ of the run folder, and besides where you look at it, as one
    run."""

    to: list[str] = field(default_factory=list)  # of tensorboard, wandb and mlflow, each an extra; e.g. `[wandb]`
    every_s: float | None = None  # between two records of steps; default: 0.1 to 5, as the run gets older; e.g. `10`
    options: dict[str, Any] = field(default_factory=dict)  # as wandb.init() has them; e.g. `{wandb: {project: digits}}`


@dataclass(eq=False, repr=False)
class TraceConfig(Section):
    """Some steps as torch.profiler sees them, in the folder of each attempt, for https://ui.perfetto.dev."""

    start: int | None = None  # the first step of an attempt that is traced; default: none is; e.g. `100`
    steps: int = 5  # how many are traced; e.g. `3`
    ranks: list[int] = field(default_factory=lambda: [0])  # whose steps; e.g. `[0, 1]`


@dataclass(eq=False, repr=False)
class ProfileConfig(Section):
    """A run of an `entry:` job that is measured. Its times are always in times.json of an attempt."""

    steps: int | None = None  # end the run after n steps, as `clusterdp profile` does; e.g. `50`
    # batch-size or workers: tried out after that, by `clusterdp profile --find`; e.g. `workers`
    find: str | None = None
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass(eq=False, repr=False)
class SweepConfig(Section):
    """Runs that differ in some values, as one job array. Each run is an element: it has a run folder of its own, and is
    preempted, requeued and resumed by itself. Each row of one block is combined with each row of the others."""

    # Each value of a key with each of the others; `--sweep KEY=1,2` adds one; a list, or range(STOP) or
    # range(START, STOP[, STEP]) of whole numbers; e.g. `{params.lr: [0.1, 0.01], params.seed: range(5)}`
    grid: dict[str, Any] = field(default_factory=dict)
    # The first value of each key, then the second: lists of one length; e.g. `{params.a: [1, 2], params.b: [3, 4]}`
    zip: dict[str, Any] = field(default_factory=dict)
    # The combinations one by one, each with the same keys; e.g. `[{params.lr: 0.1, params.width: 64}]`
    points: list[dict[str, Any]] = field(default_factory=list)
    # Drawn `samples` times: uniform(LOW, HIGH), log(LOW, HIGH): uniform in the logarithm, or choice(A, B, ...);
    # e.g. `{params.lr: "log(1e-5, 1e-2)"}`
    random: dict[str, Any] = field(default_factory=dict)
    samples: int | None = None  # how many times `random` is drawn; e.g. `20`
    seed: int = 0  # of `random`; each key has random numbers of its own, whichever others there are; e.g. `1`
    parallel: int | None = None  # how many elements run at a time; default: as many as Slurm has room for; e.g. `8`
    # A sweep beyond Slurm's MaxArraySize is several arrays. If a later one is refused: undo cancels those before it,
    # keep lets them run; e.g. `keep`
    on_refusal: str = "undo"

    @property
    def given(self) -> bool:
        """Whether it is several runs."""
        return bool(self.grid or self.zip or self.points or self.random)


@dataclass(eq=False, repr=False)
class LocalConfig(Section):
    """The fake cluster of `--cluster local`; a real Slurm never sees this."""

    preempt_at: float | None = None  # rehearse: preempt the job once, at this fraction of its steps; e.g. `0.5`
    cpus_per_node: int = 8  # of each pretend node; e.g. `16`


@dataclass(eq=False, repr=False)
class RehearseConfig(Section):
    """How `clusterdp rehearse` makes the job short, and what it compares; a submit never sees this."""

    params: dict[str, Any] = field(default_factory=dict)  # values of `params` that make it short; e.g. `{epochs: 2}`
    steps: int | None = None  # of the training; default: as many as take about 15 s; e.g. `200`
    args: list[str] = field(default_factory=list, metadata=TEXT)  # more words of `command`; e.g. `[--max_iters=100]`
    # Files of the end state, of jobs whose checkpoints are not ours: paths or patterns within the code,
    # `newest:PATTERN`, or `logs:REGEX`; default: what there is, if that is obvious; e.g. `[out/ckpt.pt]`
    compare: list[str] = field(default_factory=list)
    # How many steps a preemption with a grace time may cost, for programs that save only now and then; e.g. `50`
    may_lose: int = 0
    grace_s: float | None = None  # of preemptions; default: the partition's, where Slurm answers, else 20; e.g. `60`
    skip: list[str] = field(default_factory=list)  # drills that are left out; e.g. `[disk-full]`


@dataclass(eq=False, repr=False)
class Config(Section):
    """The config of a run."""

    name: str = "job"  # Slurm's job name; default: the file's; e.g. `digits`
    entry: str | None = None  # package.module:function, called as function(job, **params); e.g. `train:main`
    # Any program, without a shell: words, or a string that is split into words, where what only a shell acts on is
    # refused; e.g. `[python, train.py, --lr, "0.1"]`
    command: Any = field(default=None, metadata=TEXT)
    script: Any = field(default=None, metadata=TEXT)  # bash lines, where a shell is needed; e.g. `./prepare | ./train`
    params: dict[str, Any] = field(default_factory=dict)  # what the function is called with; e.g. `{lr: 0.1}`
    backend: str = "sbatch"  # how to submit: sbatch or submitit; e.g. `submitit`
    run_dir: str | None = None  # the run folder; default: runs/<name>-<date>-<time>-<4 letters>; e.g. `runs/first`
    # Configs on which this one builds; the later wins, and this file over all; their paths count from its own folder.
    # Only a file has it; e.g. `[base.yaml, site/a100.yaml]`
    defaults: list[str] = field(default_factory=list)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    rehearse: RehearseConfig = field(default_factory=RehearseConfig)
