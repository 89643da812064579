"""The config tree: every key of the YAML file, with its default and one comment, which `show --explain` prints.

The name of a key ends in its unit, such as _s or _mb. Fields for Slurm's options have Slurm's word and form.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

TEXT = {"text": True}  # words of the field stay text, not read as numbers or truth values


class Section:
    """Defines __eq__ and __repr__ for all sections. If @dataclass made both for each section, every verb would start 3
    ms later."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its values change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(eq=False, repr=False)
class ResourcesConfig(Section):
    """The resources that the job requests, with Slurm's names: `cpus_per_task` is `--cpus-per-task`."""

    # Number of nodes of the ranks; or a range such as `2-8` or a list such as `2,4,8`, which needs
    # train.global_batch_size: each attempt runs on as many as are free at its start, and goes on in the same job on
    # those that are left if one is lost; e.g. `4`
    nodes: Any = 1
    # Nodes that the job has besides, in reserve: one takes the place of a node that is lost or silent for 10 s, and the
    # ranks start again, without the queue. They are charged as the others are, and need Slurm 22.05; e.g. `1`
    spare_nodes: int = 0
    tasks_per_node: int | None = None  # ranks on each node; default: one per GPU, else 1; e.g. `8`
    cpus_per_task: int = 1  # CPUs of each rank, with any launcher; e.g. `12`
    gpus_per_node: str | None = None  # a number, or a type and a number; e.g. `a100:4`
    gpus_per_task: str | None = None  # GPUs of each rank, which then sees only its own GPUs; e.g. `1`
    mem: str | None = None  # memory of each node, in MB or with K, M, G, T; `0`: all of the node; e.g. `64G`
    time: str | None = None  # the time limit: minutes, H:M:S or D-H:M:S; default: the partition's; e.g. `1-12:00:00`
    partition: str | None = None  # a partition, or several to choose from; default: the cluster's; e.g. `gpu,debug`
    account: str | None = None  # the account that is charged; default: the user's own; e.g. `vision`
    qos: str | None = None  # quality of service; default: the account's; e.g. `high`
    constraint: str | None = None  # features that nodes must have; e.g. `a100&nvlink`
    nodelist: str | None = None  # nodes that the job must get, with others if it needs more; e.g. `n[1-4]`
    exclude: str | None = None  # nodes that the job must not get; e.g. `n7`
    reservation: str | None = None  # the name of a reservation at the site; e.g. `workshop`
    gres: str | None = None  # generic resources of each node, beside GPUs; e.g. `shard:2`
    exclusive: bool = False  # no other jobs on the nodes; e.g. `true`
    # Every other option of sbatch, by its long name: `true` for an option without a value; e.g. `{mail-type: END}`
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """The numbers of nodes with ranks that `nodes` allows, in order: [2, 4, 8] for `2,4,8`."""
        found: set[int] = set()
        for part in str(self.nodes).split(","):
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
        return sorted(found)

    @property
    def least_nodes(self) -> int:
        return self.sizes[0]

    @property
    def most_nodes(self) -> int:
        return self.sizes[-1]

    @property
    def is_elastic(self) -> bool:
        """Whether an attempt may have another number of nodes than the attempt before."""
        return len(self.sizes) > 1

    @property
    def job_nodes(self) -> int:
        """The least number of nodes that the job needs."""
        return self.least_nodes + self.spare_nodes


@dataclass(eq=False, repr=False)
class ContainerConfig(Section):
    """The container of the ranks; the batch script runs outside."""

    image: str | None = None  # Pyxis: a reference or .sqsh; Apptainer: a .sif; e.g. `nvcr.io#nvidia/pytorch:24.10-py3`
    runtime: str = "pyxis"  # the cluster's container runtime: pyxis or apptainer; e.g. `apptainer`
    gpus: str = "nvidia"  # with Apptainer: nvidia (--nv) or amd (--rocm); e.g. `amd`
    # Folders to mount inside, FROM:TO or FROM:TO:ro; the run folder is always mounted; e.g. `[/data:/data]`
    mounts: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class LaunchConfig(Section):
    """How the ranks are started, and with which environment."""

    launcher: str = "srun"  # srun: one task of srun per rank; torchrun: one agent per node; e.g. `torchrun`
    template: str | None = None  # a script template of your own; e.g. `mine.sbatch.j2`
    # The interpreter of `entry:` jobs; default: that of launch.environment, else the one that submits; e.g.
    # `/opt/env/bin/python`
    python: str | None = None
    # An archive of a Python environment, which sbcast sends to each node once a job, and which each node unpacks in its
    # own /tmp; PATH begins with its bin; e.g. `~/envs/torch.tar.gz`
    environment: str | None = None
    # The interpreter of the batch program, on the first node and outside of any container; default: the one that
    # submits, else the system's. Python 3.6 is enough; e.g. `/usr/libexec/platform-python`
    host_python: str | None = None
    # Variables of the ranks; they are written to job.sbatch, so secrets are refused; e.g. `{NCCL_DEBUG: WARN}`
    env: dict[str, str] = field(default_factory=dict)
    # Variables of your environment that go with the job and are written to no file; e.g. `[WANDB_API_KEY]`
    secrets: list[str] = field(default_factory=list)
    # Variables that each attempt reads from a file that you alone can read; e.g. `{WANDB_API_KEY: ~/.wandb-key}`
    secret_files: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)  # `module load` of each, before setup; e.g. `[cuda/12.4]`
    # Bash lines, run once, on the first node, before the ranks start; e.g. `source ~/envs/torch/bin/activate`
    setup: Any = field(default=None, metadata=TEXT)
    # record: `clusterdp why` shows the lines of setup that failed. stop: a line that fails ends the attempt as a crash
    # at its start. A line whose program, file or folder is missing always ends the attempt; e.g. `stop`
    setup_errors: str = "record"
    # NAME@SECONDS: a signal, sent SECONDS before the time limit; entry jobs get a signal by default; e.g. `USR2@90`
    signal: str | None = None
    # Entry jobs stop this long before the end of the time, and earlier if steps and saves take longer; e.g. `120`
    grace_s: int = 60
    # Check each node before the ranks start (GPUs, memory, disk, network); requeue to other nodes if a node fails; e.g.
    # `true`
    preflight: bool = False
    # One process on each node loads torch, and forks the node's ranks of an entry from itself; e.g. `false`
    fork_server: bool = True
    container: ContainerConfig = field(default_factory=ContainerConfig)


@dataclass(eq=False, repr=False)
class SnapshotConfig(Section):
    """The part of the submit directory that is copied to the run folder: files that git knows or does not ignore."""

    enabled: bool = True  # false: the job runs in the submit directory, as it is when each attempt starts; e.g. `false`
    max_mb: int = 100  # a larger snapshot is refused, with the names of its largest files; e.g. `500`
    link: list[str] = field(default_factory=list)  # paths that are linked, not copied: data, outputs; e.g. `[data]`


@dataclass(eq=False, repr=False)
class CheckpointConfig(Section):
    """Where checkpoints are stored, how often they are saved, and how many are kept."""

    url: str | None = None  # a folder, or a URL of fsspec's; default: checkpoints/ of the run; e.g. `s3://bucket/run`
    every_steps: int | None = None  # save every n steps; e.g. `1000`
    every_s: float | None = 600.0  # save every n seconds; null: only by every_steps, and at a stop; e.g. `300`
    # Options of fsspec's file system, but never a secret; e.g. `{endpoint_url: "https://s3.example.org"}`
    storage_options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0  # for one answer of the store; e.g. `120`
    retry_s: float = 120.0  # how long a store that does not answer is retried before a save fails; e.g. `600`
    keep_last: int = 3  # how many of the newest checkpoints are kept; e.g. `5`
    keep_every: int | None = None  # every n-th of all commits is kept, too; e.g. `10`
    # Commit to the run folder first, keep this many there, and copy them to url when the store can be reached; e.g. `2`
    keep_local: int = 0
    async_save: bool = True  # write while the training runs; only the save at a stop is waited for; e.g. `false`
    # Every n seconds, the state is copied to the memory of the nodes; ranks that start again on the same nodes continue
    # from there. Default: as often as takes at most 2 % of the time; 0: no copies; e.g. `10`
    memory_s: float | None = None
    max_failures: int = 3  # how many periodic saves in a row may fail before the training waits for a save; e.g. `10`
    # Compare the ranks' state at the first of every n saves; the attempt ends if the states differ; 0: never; e.g. `10`
    check_replicas_every: int = 1
    # A resume compares its first steps with those after the save. warn: prints what differs; stop: also ends the
    # attempt; off: keeps and compares nothing; e.g. `stop`
    witness: str = "warn"
    # The start of a new run: a run folder, whose best model is taken with start_only: [model], if it kept one, else its
    # newest checkpoint; or a file or folder of torch, Hugging Face, accelerate or Lightning; e.g. `old/model.pt`
    start_from: str | None = None
    # The parts of the state to take from start_from; default: all; e.g. `[model]`
    start_only: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class PolicyConfig(Section):
    """The policy after an attempt that ended for a certain cause."""

    limit: int | None = None  # how often the run continues after such an end; none: always; e.g. `3`
    wait_s: float = 0  # the minimum time until the next attempt begins, doubled each time in a row; e.g. `30`
    avoid_node: bool = False  # later attempts run on other nodes, if there are enough; e.g. `true`


@dataclass(eq=False, repr=False)
class RestartConfig(Section):
    """When a job that has ended is started again. Each cause has a policy: limit, wait_s and avoid_node."""

    requeue: bool = True  # false: `--no-requeue`, and the job ends with its first attempt; e.g. `false`
    # A crash, a hang or a killed rank: the job starts its ranks again on the same nodes, and kills what is left of the
    # old ones; after two attempts without a newer checkpoint, or on a bad node, the job goes through the queue instead,
    # unless it has a spare node, or enough others of a range
    in_place: bool = True
    # After so many seconds of an entry under srun, ranks for the next attempt on the same nodes wait with torch loaded,
    # which takes about 0.3 GB of memory a rank; none: they start when they are needed; e.g. `60`
    warm_after_s: float | None = 30
    # With a range of nodes: the run saves and goes back into the queue when, for so many seconds, enough nodes were
    # idle for a larger number of the range, and no other job waited for them; none: it stays as it is; e.g. `600`
    grow_after_s: float | None = None
    # requeue: the same job again; resubmit: a new job after it, for sites that forbid requeue; e.g. `resubmit`
    how: str = "requeue"
    # With resubmit: the next job waits in the queue while one runs, up to so many jobs in all; e.g. `5`
    chain: int | None = None
    # How often faults (crash, start, memory, hung, disk together) are tried again; exit 126 and 127 once; e.g. `0`
    max_crashes: int = 3
    # How many attempts in a row may make no newer checkpoint; if not entry jobs: exit 75 within a minute; e.g. `3`
    max_no_progress: int = 5
    max_attempts: int | None = None  # the attempts of one job, with its requeues for any cause; e.g. `100`
    # No attempt starts after so many allocated hours without a newer checkpoint; default: 48 for entry jobs; e.g. `12`
    max_hours: float | None = None
    from_step: int | None = None  # continue from this checkpoint (set by `resume --from`); e.g. `1000`
    # After so many seconds without progress of the slowest rank, a hang is reported, in entry jobs and own_job();
    # default: 5 times the longest step so far, at least 300. The first step, restore, evaluation, save and code outside
    # the loop may take longer: up to 0.9 of train.timeout_s if other ranks wait for them. For command: and script: only
    # if this key is set: their program hangs if it prints nothing and uses no CPU time; e.g. `600`
    hang_after_s: float | None = None
    # report: never ends the attempt. restart: ends it as hung with the report. default: ends it as hung after twice
    # hang_after_s; in a phase that may take longer, when the collective that waits for it times out; e.g. `report`
    on_hang: str | None = None
    preempted: PolicyConfig = field(default_factory=PolicyConfig)
    timeout: PolicyConfig = field(default_factory=PolicyConfig)
    requeued: PolicyConfig = field(default_factory=PolicyConfig)  # by the program itself, or an administrator
    node_lost: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=10, avoid_node=True))
    crash: PolicyConfig = field(default_factory=PolicyConfig)
    start: PolicyConfig = field(default_factory=PolicyConfig)  # a crash in the first minute
    memory: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=1))  # an attempt that ran out of memory
    hung: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=2, avoid_node=True))
    disk: PolicyConfig = field(default_factory=partial(PolicyConfig, wait_s=60))  # a full disk
    # a node failed launch.preflight
    preflight: PolicyConfig = field(default_factory=partial(PolicyConfig, limit=5, avoid_node=True))


# The causes that have a policy
POLICIES = tuple(each.name for each in fields(RestartConfig) if each.type == "PolicyConfig")


@dataclass(eq=False, repr=False)
class NotifyConfig(Section):
    """Messages about a run, by webhook_file or command. The batch script takes 10 s at most for a message, and a failed
    message has no effect on the job."""

    # The events that send a message: end (done, or stopped as asked), failure (also by a limit of restart:), hang (when
    # it is reported), requeue (each new attempt of the run); `[]`: none; e.g. `[failure, hang]`
    on: list[str] = field(default_factory=lambda: ["end", "failure", "hang"])
    # A file that only you can read, with the address of a webhook, which gets JSON in Slack's form, {"text": ...}; the
    # file is read when a message is sent; e.g. `~/.slack-webhook`
    webhook_file: str | None = None
    # Or a program, run without a shell on the job's first node: it reads the text from its standard input; its
    # environment has CLUSTERDP_EVENT, _CAUSE, _RUN, _JOB, _NAME, _STEP, _EXIT and _TEXT; e.g. `[mail, me@example.org]`
    command: list[str] = field(default_factory=list)

    @property
    def given(self) -> bool:
        """Whether the config asks for any messages."""
        return bool(self.on and (self.webhook_file or self.command))


@dataclass(eq=False, repr=False)
class AmpConfig(Section):
    """Mixed precision, for code that takes `job.amp`."""

    # O0: fp32; O1: autocast to fp16; O2: fp16 with fp32 masters; O3: fp16; bf16: autocast to bf16; e.g. `bf16`
    level: str = "O0"
    loss_scale: Any = None  # dynamic, or a number; default: dynamic for O1 and O2, none for the others; e.g. `128`
    keep_batchnorm_fp32: bool | None = None  # default: true for O2, false for O3; e.g. `true`
    init_scale: float = 65536.0  # the first value of a dynamic scale; e.g. `1024`
    growth_interval: int = 2000  # steps without an overflow before the scale is doubled; e.g. `500`


@dataclass(eq=False, repr=False)
class TrainConfig(Section):
    """How `entry:` jobs and own_job() train: the process group, the seeds, job.wrap(model) and job.loop(...)."""

    seed: int = 0  # the seed of torch, numpy and random; differs by rank; e.g. `1`
    deterministic: bool = False  # torch.use_deterministic_algorithms(); slower; e.g. `true`
    backend: str | None = None  # the process group's; default: nccl if each rank has a GPU, else gloo; e.g. `gloo`
    max_steps: int | None = None  # the training ends at this step, even within an epoch; e.g. `1000`
    timeout_s: float = 1800.0  # for a collective that waits for another rank: the attempt ends as hung; e.g. `600`
    # ddp; fsdp: sharded; hsdp: sharded within each node; dp: one process, the last resort; e.g. `fsdp`
    strategy: str = "ddp"
    ddp: dict[str, Any] = field(default_factory=dict)  # for DistributedDataParallel(); e.g. `{bucket_cap_mb: 50}`
    comm_hook: str | None = None  # fp16, bf16 or powersgd: gradients are sent in fewer bytes; e.g. `bf16`
    powersgd: dict[str, Any] = field(default_factory=dict)  # for PowerSGDState(); e.g. `{matrix_approximation_rank: 2}`
    # Settings for fully_shard(); e.g. `{units: [Block], param_dtype: bfloat16}`
    fsdp: dict[str, Any] = field(default_factory=dict)
    amp: AmpConfig = field(default_factory=AmpConfig)
    accumulate: int = 1  # batches for each step of the optimizer; e.g. `4`
    # Samples of a step of the optimizer, on any number of ranks; micro-batches have the loader's batch_size; e.g. `512`
    global_batch_size: int | None = None
    # same_ranks: a run has the same bits on the same number of ranks; any_ranks: on any number, with
    # train.global_batch_size, by sums in a fixed order; e.g. `any_ranks`
    exact: str = "same_ranks"
    clip_norm: float | None = None  # the largest norm of all gradients together; e.g. `1.0`
    clip_value: float | None = None  # the largest element of a gradient; e.g. `0.5`
    # stop, or skip (ten in a row at most), when a loss or gradient is not finite; e.g. `skip`
    on_nan: str | None = None
    sync_batchnorm: bool = False  # BatchNorm statistics over the batches of all ranks; e.g. `true`
    # Gradient checkpointing of modules of these classes; e.g. `[Block]`
    recompute: list[str] = field(default_factory=list)
    compile: Any = None  # true, or torch.compile's own arguments; e.g. `{mode: max-autotune}`


@dataclass(eq=False, repr=False)
class MetricsConfig(Section):
    """Metrics that rank 0 logs: always to metrics/ of the run folder, and as one run to the tools of `to`."""

    to: list[str] = field(default_factory=list)  # tensorboard, wandb or mlflow, each an extra; e.g. `[wandb]`
    every_s: float | None = None  # between two records of steps; default: 0.1 to 5, as the run gets older; e.g. `10`
    options: dict[str, Any] = field(default_factory=dict)  # each tool's own options; e.g. `{wandb: {project: digits}}`


@dataclass(eq=False, repr=False)
class TraceConfig(Section):
    """A trace of some steps by torch.profiler, in the folder of each attempt, for https://ui.perfetto.dev."""

    start: int | None = None  # the first step of an attempt that is traced; default: no trace; e.g. `100`
    steps: int = 5  # how many steps are traced; e.g. `3`
    ranks: list[int] = field(default_factory=lambda: [0])  # the ranks that are traced; e.g. `[0, 1]`


@dataclass(eq=False, repr=False)
class ProfileConfig(Section):
    """Measurements of an `entry:` job. The times of steps are always in times.json of an attempt, even without this
    section."""

    steps: int | None = None  # end the run after n steps, as `clusterdp profile` does; e.g. `50`
    find: str | None = None  # workers: numbers of loader workers are tried, by `profile --find`; e.g. `workers`
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass(eq=False, repr=False)
class SweepConfig(Section):
    """Runs that differ in some values, as one job array. Each run is an element: it has its own run folder, and is
    preempted, requeued and resumed by itself. Each row of one block is combined with each row of the other blocks."""

    # Each value of a key is combined with each value of the others; `--sweep KEY=1,2` adds a key; a list, range(STOP)
    # or range(START, STOP[, STEP]) of whole numbers; e.g. `{params.lr: [0.1, 0.01], params.seed: range(5)}`
    grid: dict[str, Any] = field(default_factory=dict)
    # The first values of all keys, then the second ones: equal lengths; e.g. `{params.a: [1, 2], params.b: [3, 4]}`
    zip: dict[str, Any] = field(default_factory=dict)
    # The combinations one by one, each with the same keys; e.g. `[{params.lr: 0.1, params.width: 64}]`
    points: list[dict[str, Any]] = field(default_factory=list)
    # Drawn `samples` times: uniform(LOW, HIGH), log(LOW, HIGH): uniform in the logarithm, or choice(A, B, ...);
    # e.g. `{params.lr: "log(1e-5, 1e-2)"}`
    random: dict[str, Any] = field(default_factory=dict)
    samples: int | None = None  # how many times `random` is drawn; e.g. `20`
    seed: int = 0  # the seed of `random`; the numbers of a key do not depend on other keys; e.g. `1`
    parallel: int | None = None  # how many elements run at a time; default: as many as Slurm has room for; e.g. `8`
    # A sweep beyond Slurm's MaxArraySize is several arrays. If a later one is refused: undo cancels those before it,
    # keep lets them run; e.g. `keep`
    on_refusal: str = "undo"

    @property
    def given(self) -> bool:
        """Whether the config describes a sweep, which is several runs."""
        return bool(self.grid or self.zip or self.points or self.random)


@dataclass(eq=False, repr=False)
class LocalConfig(Section):
    """The fake cluster of `--cluster local`. A real Slurm ignores this section."""

    preempt_at: float | None = None  # rehearse: preempt the job once, at this fraction of its steps; e.g. `0.5`
    cpus_per_node: int = 8  # CPUs of each fake node; e.g. `16`


@dataclass(eq=False, repr=False)
class RehearseConfig(Section):
    """How `clusterdp rehearse` shortens the job, and the files that it compares. A submit ignores this section."""

    params: dict[str, Any] = field(default_factory=dict)  # values of `params` for a short job; e.g. `{epochs: 2}`
    steps: int | None = None  # steps of the training; default: as many as take about 15 s; e.g. `200`
    args: list[str] = field(default_factory=list, metadata=TEXT)  # words to add to `command`; e.g. `[--max_iters=100]`
    # Files of the end state, for jobs with checkpoints of their own kind: paths or patterns within the code,
    # `newest:PATTERN`, or `logs:REGEX`; default: the files that exist, if obvious; e.g. `[out/ckpt.pt]`
    compare: list[str] = field(default_factory=list)
    # How many steps a preemption with a grace time may cost, for programs that save only now and then; e.g. `50`
    may_lose: int = 0
    grace_s: float | None = None  # for preemptions; default: the partition's, if Slurm answers, else 20; e.g. `60`
    skip: list[str] = field(default_factory=list)  # drills that are left out; e.g. `[disk-full]`


@dataclass(eq=False, repr=False)
class Config(Section):
    """The config of a run: all keys of the YAML file."""

    name: str = "job"  # Slurm's job name; default: the file's; e.g. `digits`
    entry: str | None = None  # package.module:function, called as function(job, **params); e.g. `train:main`
    # Any program, run without a shell: words, or a string that is split into words, in which shell syntax is refused;
    # e.g. `[python, train.py, --lr, "0.1"]`
    command: Any = field(default=None, metadata=TEXT)
    script: Any = field(default=None, metadata=TEXT)  # bash lines, if a shell is needed; e.g. `./prepare | ./train`
    params: dict[str, Any] = field(default_factory=dict)  # the arguments of the function; e.g. `{lr: 0.1}`
    backend: str = "sbatch"  # how to submit: sbatch or submitit; e.g. `submitit`
    run_dir: str | None = None  # the run folder; default: runs/<name>-<date>-<time>-<4 letters>; e.g. `runs/first`
    # Configs on which this one builds: a later one overrides an earlier one, and this file overrides all; paths are
    # relative to this file's folder. Only a file may have this key; e.g. `[base.yaml, site/a100.yaml]`
    defaults: list[str] = field(default_factory=list)
    # The runs after which this one starts, by folder or job id: RUN, or done:RUN, is done; any:RUN is over, in whatever
    # way; started:RUN has begun; each:SWEEP: of two sweeps, the element of the same number is done. ${after.run_dir} is
    # the folder of the first; e.g. `[runs/first, any:runs/second]`
    after: Any = None
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


@dataclass(eq=False, repr=False)
class RemoteConfig(Section):
    """A cluster behind ssh: where your projects are there, and by which interpreter clusterdp runs there."""

    # The folder there that stands for the folder in which you type; PROJECT in it is the name of that one. It begins
    # with / or ~/; e.g. `~/runs/PROJECT`
    folder: str = "~/clusterdp/PROJECT"
    # The interpreter there that has clusterdp: a name on PATH there, or a path; e.g. `~/envs/torch/bin/python`
    python: str = "python3"


@dataclass(eq=False, repr=False)
class SiteConfig(Config):
    """The site profile: values for all configs, and the keys that no config may have."""

    on: str | None = None  # the host of ~/.ssh/config on which the verbs run; default: this machine; e.g. `cluster`
    remote: RemoteConfig = field(default_factory=RemoteConfig)
