"""Checks config values beyond their types: single values, and combinations of values."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter

from clusterdp.config.secrets import WEBHOOK_PROBLEM, WEBHOOK_REMEDY, secrets
from clusterdp.config.tree import POLICIES, Config, NotifyConfig, ResourcesConfig, TrainConfig
from clusterdp.errors import ConfigError
from clusterdp.wording import closest

SEXAGESIMAL = "[0-5]?[0-9]"
TIME = re.compile(
    rf"\d+(:{SEXAGESIMAL})?|\d+:{SEXAGESIMAL}:{SEXAGESIMAL}|\d+-\d+(:{SEXAGESIMAL}){{0,2}}|UNLIMITED|INFINITE"
)
NODES = re.compile(r"[1-9]\d{0,4}(-[1-9]\d{0,4})?(,[1-9]\d{0,4}(-[1-9]\d{0,4})?)*")
MEMORY = re.compile(r"(?i)\d+[KMGT]?B?")
SIGNALS = "HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU".split()
LEAST_STEPS = 6  # the measurement leaves out the first 5 steps
AT_LEAST = {  # minimum -> the keys that may not be smaller
    1: "resources.cpus_per_task resources.tasks_per_node snapshot.max_mb local.cpus_per_node "
    "train.accumulate train.global_batch_size train.max_steps profile.trace.steps checkpoint.keep_last "
    "checkpoint.every_steps checkpoint.keep_every checkpoint.timeout_s restart.max_attempts restart.chain "
    "sweep.samples sweep.parallel rehearse.steps",
    0: "resources.spare_nodes restart.max_crashes restart.max_no_progress restart.from_step restart.warm_after_s "
    "checkpoint.max_failures "
    "checkpoint.check_replicas_every checkpoint.keep_local checkpoint.retry_s checkpoint.memory_s rehearse.may_lose "
    + " ".join(f"restart.{cause}.limit restart.{cause}.wait_s" for cause in POLICIES),
}
# These keys must be above 0.
TIMES = (
    "launch.grace_s train.timeout_s restart.hang_after_s restart.grow_after_s checkpoint.every_s metrics.every_s "
    "restart.max_hours"
)
OURS = {  # option of sbatch that the script sets itself -> the key to write instead
    "job-name": "name",
    "output": "logs/ of each attempt, in the run folder",
    "error": "logs/ of each attempt, in the run folder",
    "open-mode": "the logs as they are: they are always appended to",
    "requeue": "restart.requeue",
    "no-requeue": "restart.requeue",
    "signal": "launch.signal",
    "array": "--sweep, or the sweep: block of the config",
    "ntasks": "resources.tasks_per_node",
    "ntasks-per-node": "resources.tasks_per_node",
    "wrap": "command",
    "export": "launch.env",
}


def check(config: Config, sources: Mapping[str, str], sections: Collection[str] | None = None) -> None:
    """Raises ConfigError for the first mistake, with file and line. If `sections` is given, only these sections are
    searched for secrets."""
    for key, problem, remedy in (
        *secrets(config, sections),
        *_bad_program(config),
        *_bad_choices(config),
        *_bad_nodes(config),
        *_bad_growth(config),
        *_bad_submitit(config),
        *_bad_combinations(config),
        *_bad_values(config),
        *_bad_secrets(config),
        *_bad_saving(config),
        *_bad_paths(config),
        *_bad_train(config),
        *_bad_measuring(config),
        *_bad_sweep(config),
        *_bad_notify(config),
    ):
        place = f"{sources[key]}: " if key in sources else ""
        raise ConfigError(f"{place}{key}: {problem}. {remedy}.")


def _bad_program(c: Config) -> Iterator[tuple[str, str, str]]:
    kinds = [kind for kind in ("entry", "command", "script") if getattr(c, kind) not in (None, "", [])]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none"
        key = kinds[1] if kinds else "entry"
        yield key, f"one of entry, command, script says what runs; there is {got}", "Keep one"
    if c.entry and ".py" in c.entry:
        module, _, function = c.entry.partition(":")
        name = module.removesuffix(".py").strip("./").replace("/", ".")
        yield "entry", f"{c.entry!r} names a file", f"Name the module: {name}:{function or 'main'}"
    if c.entry and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", c.entry):
        yield "entry", f"{c.entry!r} is not package.module:function", "Write e.g. train:main for main() in train.py"


def _bad_choices(c: Config) -> Iterator[tuple[str, str, str]]:
    choices = {
        "backend": (c.backend, ("sbatch", "submitit")),
        "launch.launcher": (c.launch.launcher, ("srun", "torchrun")),
        "launch.container.runtime": (c.launch.container.runtime, ("pyxis", "apptainer")),
        "launch.container.gpus": (c.launch.container.gpus, ("nvidia", "amd")),
        "restart.how": (c.restart.how, ("requeue", "resubmit")),
        "train.strategy": (c.train.strategy, ("ddp", "fsdp", "hsdp", "dp")),
        "train.comm_hook": (c.train.comm_hook, (None, "fp16", "bf16", "powersgd")),
        "train.exact": (c.train.exact, ("same_ranks", "any_ranks")),
        "launch.setup_errors": (c.launch.setup_errors, ("record", "stop")),
        "checkpoint.witness": (c.checkpoint.witness, ("warn", "stop", "off")),
        "restart.on_hang": (c.restart.on_hang, (None, "report", "restart")),
        "profile.find": (c.profile.find, (None, "workers")),
        "train.on_nan": (c.train.on_nan, (None, "stop", "skip")),
        "sweep.on_refusal": (c.sweep.on_refusal, ("undo", "keep")),
        "train.amp.level": (c.train.amp.level, ("O0", "O1", "O2", "O3", "bf16", "fp16", "fp32")),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            names = [name for name in allowed if name]
            close = closest(str(value), names)
            yield key, f"{value!r} is none of {', '.join(names)}", f"Write {close or 'one of these'}"


def _bad_nodes(c: Config) -> Iterator[tuple[str, str, str]]:
    key, text = "resources.nodes", c.resources.nodes if type(c.resources.nodes) in (int, str) else ""
    if not NODES.fullmatch(str(text)):
        given = c.resources.nodes
        ends = (
            f"{min(given)}-{max(given)}" if isinstance(given, list) and given and {*map(type, given)} == {int} else ""
        )
        remedy = f"Write nodes: {ends or '4, a range such as 2-8, or a list such as 2,4,8'}"
        yield key, f"{given!r} is not a number of nodes, nor a range or a list", remedy
    elif backwards := next((part for part in str(text).split(",") if not _goes_up(part)), ""):
        yield key, f"{backwards} ends before it begins", f"Write nodes: {'-'.join(reversed(backwards.split('-')))}"
    elif c.resources.is_elastic:
        if c.entry and c.train.global_batch_size is None:
            problem = f"with {text} nodes, the samples of a step would change with the nodes of each attempt"
            remedy = "Set train.global_batch_size, the samples of a step on any number of nodes, or write one number"
            yield key, problem, remedy
        if "gpus" in c.resources.extra:
            problem = f"is the same number on any of {text} nodes"
            yield "resources.extra.gpus", problem, "Use resources.gpus_per_node"


def _bad_growth(c: Config) -> Iterator[tuple[str, str, str]]:
    key = "restart.grow_after_s"
    if c.restart.grow_after_s is None:
        return
    if not c.resources.is_elastic:
        yield key, f"has no effect with nodes: {c.resources.nodes}", "Write a range such as nodes: 2-8, or leave it out"
    if not (c.entry and c.restart.requeue and c.backend == "sbatch" and c.launch.launcher == "srun"):
        # torchrun starts ranks in sessions of their own, which no signal of srun reaches
        needs = "needs entry:, restart.requeue: true, backend: sbatch and launch.launcher: srun"
        yield key, needs, "Set these, or leave it out"


def _goes_up(part: str) -> bool:
    low, _, high = part.partition("-")
    return int(low) <= int(high or low)


def _bad_submitit(c: Config) -> Iterator[tuple[str, str, str]]:
    if c.backend != "submitit":
        return
    if not c.entry:
        yield "backend", "submitit runs Python functions", "Use entry:, or backend: sbatch"
    for key, used in {
        "launch.launcher": c.launch.launcher == "torchrun",
        "launch.container": c.launch.container.image,
        "launch.template": c.launch.template,
        "launch.preflight": c.launch.preflight,
        "launch.environment": c.launch.environment,
        "after": c.after,
    }.items():
        if used:
            yield key, "submitit writes its own script, which has no place for this", "Use backend: sbatch"


def _bad_combinations(c: Config) -> Iterator[tuple[str, str, str]]:
    if c.launch.preflight and not c.entry:
        yield "launch.preflight", "needs clusterdp on the nodes, as entry jobs have it", "Use entry:, or leave it out"
    if c.launch.environment and c.launch.container.image:
        yield "launch.environment", "is unpacked on the nodes, outside of the container", "Leave one of the two out"
    if c.restart.chain and (c.restart.how != "resubmit" or not c.restart.requeue):
        remedy = "Set that as well, and restart.requeue: true"
        yield "restart.chain", "has no effect without restart.how: resubmit", remedy
    if c.resources.spare_nodes and not (c.restart.in_place and c.restart.requeue and c.backend == "sbatch"):
        needs = "needs restart.in_place: true, restart.requeue: true and backend: sbatch"
        yield "resources.spare_nodes", needs, "Set these, or leave it out"
    for option in ("no-kill", "gpus") if c.resources.spare_nodes else ():
        if option in c.resources.extra:
            remedy = "Leave it out" if option == "no-kill" else "Use resources.gpus_per_node"
            yield f"resources.extra.{option}", "does not go with resources.spare_nodes", remedy
    if c.after and "dependency" in c.resources.extra:
        yield "resources.extra.dependency", "does not go with after", "Keep one"
    if c.resources.gpus_per_task and c.launch.launcher == "torchrun":
        yield "resources.gpus_per_task", "torchrun's agent is one task for all ranks of a node", "Use gpus_per_node"


def _bad_train(c: Config) -> Iterator[tuple[str, str, str]]:
    t = c.train
    if t.clip_norm is not None and t.clip_value is not None:
        yield "train.clip_value", "gradients are clipped by norm or by value, not both", "Keep one"
    if t.global_batch_size is not None and t.accumulate != 1:
        problem = "train.global_batch_size says how many batches a step of the optimizer has"
        yield "train.accumulate", problem, "Leave one of the two out"
    if t.global_batch_size is not None and t.ddp.get("static_graph"):
        problem = "does not go with train.global_batch_size, where ranks may make different numbers of passes"
        yield "train.ddp.static_graph", problem, "Leave it out"
    if t.exact == "any_ranks":
        yield from _bad_for_any_ranks(t)
    if t.compile is not None and not isinstance(t.compile, (bool, dict)):
        remedy = "Write true, or e.g. {mode: max-autotune}"
        yield "train.compile", f"{t.compile!r} is neither true nor arguments", remedy
    for key, needs in {"ddp": ("ddp",), "comm_hook": ("ddp",), "fsdp": ("fsdp", "hsdp")}.items():
        if getattr(t, key) and t.strategy not in needs:
            yield f"train.{key}", f"has no effect where train.strategy is {t.strategy}", "Leave it out"
    if t.powersgd and t.comm_hook != "powersgd":
        yield "train.powersgd", "has no effect without train.comm_hook: powersgd", "Set that as well"
    scaled = t.amp.level in ("O1", "O2", "O3", "fp16") or t.amp.loss_scale not in (None, 1)
    if t.comm_hook == "powersgd" and (t.on_nan == "skip" or scaled):
        # PowerSGD adds the error of a step to the next step: an error that is not finite stays there for ever.
        remedy = "Use level bf16 or O0 without loss_scale and on_nan: stop, or comm_hook: bf16"
        yield "train.comm_hook", "powersgd cannot skip a step, which a loss scale and on_nan: skip need", remedy
    if t.amp.level in ("O2", "O3") and t.strategy in ("fsdp", "hsdp"):
        remedy = "Use O1 or bf16, or train.fsdp: {param_dtype: bfloat16}"
        yield "train.amp.level", f"{t.amp.level} halves the weights, and {t.strategy} shards them in fp32", remedy


def _bad_for_any_ranks(t: TrainConfig) -> Iterator[tuple[str, str, str]]:
    if t.global_batch_size is None:
        problem = "any_ranks needs steps that are the same on any number of ranks"
        yield "train.exact", problem, "Set train.global_batch_size, the samples of a step, as well"
    for key, (is_set, why) in {
        "train.strategy": (t.strategy != "ddp", f"{t.strategy} adds up by its own order"),
        "train.comm_hook": (t.comm_hook is not None, "it rounds what the ranks send"),
        "train.sync_batchnorm": (t.sync_batchnorm, "its statistics are of the samples that the ranks do together"),
        "train.ddp.find_unused_parameters": (
            bool(t.ddp.get("find_unused_parameters")),
            "each micro-batch must have all gradients",
        ),
    }.items():
        if is_set:
            yield key, f"does not go with train.exact: any_ranks, because {why}", "Leave one of the two out"


def _bad_measuring(c: Config) -> Iterator[tuple[str, str, str]]:
    profile, trace = c.profile, c.profile.trace
    if profile.find and (profile.steps is None or profile.steps < LEAST_STEPS):
        yield "profile.steps", f"{profile.steps} are too few to find anything", f"Write {LEAST_STEPS} or more"
    if trace.start is not None and trace.start < 3:
        yield "profile.trace.start", f"{trace.start} is too early, because it takes a step to begin", "Write 3 or more"
    known = ("tensorboard", "wandb", "mlflow")
    for name in c.metrics.to:
        if name not in known:
            yield "metrics.to", f"{name!r} is none of {', '.join(known)}", "Write one of them"


def _bad_sweep(c: Config) -> Iterator[tuple[str, str, str]]:
    if c.sweep.samples is not None and not c.sweep.random:
        yield "sweep.samples", "has no effect without sweep.random", "Say there what is drawn, or leave it out"
    if c.sweep.random and c.sweep.samples is None:
        yield "sweep.samples", "is not set, so it is not known how often sweep.random is drawn", "Write e.g. 20"


def _bad_notify(c: Config) -> Iterator[tuple[str, str, str]]:
    known = ("end", "failure", "hang", "requeue")
    for event in c.notify.on:
        if event not in known:
            remedy = f"Write {closest(event, known) or 'one of these'}"
            yield "notify.on", f"{event!r} is none of {', '.join(known)}", remedy
    if "requeue" in c.notify.on and not c.restart.requeue:
        yield "notify.on", "requeue never comes where restart.requeue is false", "Leave it out"
    if "://" in (c.notify.webhook_file or ""):
        yield "notify.webhook_file", WEBHOOK_PROBLEM, WEBHOOK_REMEDY
    if c.notify.webhook_file and c.notify.command:
        yield "notify.command", "one of webhook_file and command tells people", "Keep one: a command may call curl, too"
    if c.notify.command and not c.notify.command[0]:
        yield "notify.command", "names no program", "Write words: [mail, -s, training, me@example.org]"
    if c.notify.on not in ([], NotifyConfig().on) and not c.notify.given:
        yield "notify.on", "nobody is told", "Set notify.webhook_file or notify.command as well"


def _bad_saving(c: Config) -> Iterator[tuple[str, str, str]]:
    saving = c.checkpoint
    scheme, separator, place = (saving.url or "").partition("://")
    if separator and not place.strip("/") and scheme != "memory":
        yield "checkpoint.url", f"{saving.url} has no path after ://", "Write e.g. s3://bucket/folder, or a path"
    if saving.keep_local and "://" not in (saving.url or ""):
        yield "checkpoint.keep_local", "is for a checkpoint.url that is a store", "Leave it out, or set checkpoint.url"


def _bad_paths(c: Config) -> Iterator[tuple[str, str, str]]:
    container = c.launch.container
    paths = {
        "run_dir": c.run_dir,
        "checkpoint.url": c.checkpoint.url,
        "launch.container.image": container.image,
        "launch.host_python": c.launch.host_python,
        "launch.environment": c.launch.environment,
        "launch.template": c.launch.template,
        "notify.webhook_file": c.notify.webhook_file,
    }
    mounts = ((f"launch.container.mounts[{number}]", mount) for number, mount in enumerate(container.mounts))
    for key, path in (*paths.items(), *mounts):
        if found := re.search(r"\$([A-Za-z_]\w*|(?=\())", path or ""):
            name = found[1] or "NAME"
            yield key, f"{path!r} is for a shell, and none reads it", f"Write ${{oc.env:{name}}}, filled in at submit"
        is_url = key in ("run_dir", "checkpoint.url", "launch.container.image")  # not FROM:TO of a mount
        if is_url and (found := re.match(r"([A-Za-z][\w+.-]+):/(?!/)", path or "")):
            remedy = f"Write {found[1]}://{(path or '')[found.end() :]}, or a path"
            yield key, f"{path!r} has one / after {found[1]}:", remedy


def _bad_signal(signal: str | None) -> Iterator[tuple[str, str, str]]:
    if signal is None:
        return
    match = re.fullmatch(r"(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d+))?", signal)
    if not match:
        yield "launch.signal", f"{signal!r} is not NAME[@SECONDS]", "Write e.g. USR2@90; B: is for the script alone"
    elif match[1] not in SIGNALS and not (match[1].isdigit() and 0 < int(match[1]) <= 64):
        yield "launch.signal", f"{match[1]} is not a signal", f"Write one of {', '.join(SIGNALS)}, or a number"


def _bad_gpus(r: ResourcesConfig) -> Iterator[tuple[str, str, str]]:
    """Checks that a node's GPUs and its ranks' GPUs agree, if both are given."""
    texts = {"gpus_per_node": r.gpus_per_node, "gpus_per_task": r.gpus_per_task}
    counts = [re.fullmatch(r"(?:.*:)?(\d+)", text or "") for text in texts.values()]
    for (key, text), count in zip(texts.items(), counts, strict=True):
        if text is not None and not count:
            yield f"resources.{key}", f"{text!r} is not a number of GPUs", "Write e.g. 4, or with a type a100:4"
    if counts[0] and counts[1]:
        node, each = int(counts[0][1]), int(counts[1][1])
        ranks = r.tasks_per_node or node
        if each * ranks != node:
            problem = f"{each} for each of {ranks} ranks are not the {node} of resources.gpus_per_node"
            yield "resources.gpus_per_task", problem, "Leave one of the two out, or correct resources.tasks_per_node"


def _bad_values(c: Config) -> Iterator[tuple[str, str, str]]:
    r = c.resources
    if r.time is not None and not TIME.fullmatch(r.time):
        remedy = 'Write e.g. "2:00:00", "1-12:00:00" or 90, minutes'
        yield "resources.time", f"{r.time!r} is not a time limit that Slurm knows", remedy
    if r.mem is not None and not MEMORY.fullmatch(r.mem):
        yield "resources.mem", f"{r.mem!r} is not an amount of memory", "Write e.g. 64G, or 4000, megabytes; no blanks"
    yield from _bad_numbers(c)
    yield from _bad_gpus(r)
    yield from _bad_signal(c.launch.signal)
    for key, given, what, remedy in (
        ("launch.setup", c.launch.setup, "text", "Write lines of bash below `|`"),
        ("script", c.script, "text", "Write lines of bash below `|`"),
        ("command", c.command, "a command", "Write words: [python, train.py]"),
    ):
        words = given if isinstance(given, list) else [given]
        bad = [at for at, word in enumerate(words) if not isinstance(word, str)]
        if given is not None and bad and isinstance(given, list):
            part = "word" if key == "command" else "line"
            yield key, f"{part} {bad[0] + 1} is {json.dumps(words[bad[0]])}, and not text", "Put it in quotes"
        elif given is not None and bad:
            yield key, f"{given!r} is not {what}", remedy
    yield from _bad_environment(c.launch.env)
    yield from _bad_options(r.extra)


def _bad_numbers(c: Config) -> Iterator[tuple[str, str, str]]:
    for least, keys in AT_LEAST.items():
        for key in keys.split():
            number = attrgetter(key)(c)
            if number is not None and number < least:
                yield key, f"{number} is less than {least}", f"Write {least} or more"
    for key in TIMES.split():
        seconds = attrgetter(key)(c)
        if seconds is not None and seconds <= 0:
            yield key, f"{seconds:g} is not above 0", "Write a positive number"
    if c.local.preempt_at is not None and not 0 < c.local.preempt_at < 1:
        yield "local.preempt_at", f"{c.local.preempt_at} is not between 0 and 1", "Write e.g. 0.5"


def _bad_environment(env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in env.items():
        key = f"launch.env.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            yield key, "is not the name of an environment variable", "Use letters, digits and _"
        if "\0" in value:
            yield key, "has a NUL character", "Remove it"


def _bad_options(extra: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    for option in extra:
        key = f"resources.extra.{option}"
        if option in OURS:
            yield key, "is set by clusterdp", f"Use {OURS[option]}"
        if option.replace("-", "_") in {f.name for f in dataclasses.fields(ResourcesConfig)}:
            yield key, "has a key of its own", f"Write resources.{option.replace('-', '_')}"
        if not re.fullmatch(r"[a-z][a-z0-9-]+", option):
            name = option.strip("-").replace("_", "-") or "mail-type"
            yield (
                key,
                "is not a long option of sbatch",
                f"Write it as sbatch has it, without dashes in front: {name}",
            )


def _bad_secrets(c: Config) -> Iterator[tuple[str, str, str]]:
    for name in (*c.launch.secrets, *c.launch.secret_files):
        key = f"launch.secret_files.{name}" if name in c.launch.secret_files else "launch.secrets"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            yield key, "lists what is not the name of an environment variable", "Write names alone: [WANDB_API_KEY]"
        if name in c.launch.env or (name in c.launch.secrets and name in c.launch.secret_files):
            yield key, f"{name} is given twice", "Keep one"
