"""What each value of a config must be beyond its type, and what all of them together must be."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from clusterdp.config import Config, Resources
from clusterdp.errors import ConfigError

TIME = re.compile(r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE")
CREDENTIALS = "Leave it out: the store's own environment variables or files of credentials are read on every node"
SECRET = re.compile(r"(?i)(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)")
LEAST_STEPS = 6  # one more than a stopwatch leaves out
OURS = {  # options of sbatch that the script needs for itself, and the key that sets them
    "job-name": "name",
    "output": "(logs are in the run folder)",
    "error": "(logs are in the run folder)",
    "open-mode": "(always append)",
    "requeue": "restart.requeue",
    "no-requeue": "restart.requeue",
    "signal": "launch.signal",
    "array": "(one run, one job)",
    "ntasks": "resources.tasks_per_node",
    "ntasks-per-node": "resources.tasks_per_node",
    "wrap": "command",
    "export": "launch.env",
}


def check(config: Config, sources: Mapping[str, str]) -> None:
    """Raises ConfigError for the first mistake, with its place."""
    for key, problem, remedy in (
        *_misfits(config),
        *_bad_values(config),
        *_bad_saving(config),
        *_bad_train(config),
        *_bad_measuring(config),
    ):
        place = f"{sources[key]}: " if key in sources else ""
        raise ConfigError(f"{place}{key}: {problem}. {remedy}.")


def _misfits(c: Config) -> Iterator[tuple[str, str, str]]:
    kinds = [kind for kind in ("entry", "command", "script") if getattr(c, kind) not in (None, "", [])]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none"
        key = kinds[1] if kinds else "entry"
        yield key, f"one of entry, command, script says what runs; there is {got}", "Keep one"
    if c.entry and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", c.entry):
        yield "entry", f"{c.entry!r} is not package.module:function", "Write e.g. train:main for main() in train.py"
    choices = {
        "backend": (c.backend, ("sbatch", "submitit")),
        "launch.launcher": (c.launch.launcher, ("srun", "torchrun")),
        "launch.container.runtime": (c.launch.container.runtime, ("pyxis", "apptainer")),
        "train.strategy": (c.train.strategy, ("ddp", "fsdp", "hsdp", "dp")),
        "train.comm_hook": (c.train.comm_hook, (None, "fp16", "bf16", "powersgd")),
        "profile.find": (c.profile.find, (None, "batch-size", "workers")),
        "train.on_nan": (c.train.on_nan, (None, "stop", "skip")),
        "train.amp.level": (c.train.amp.level, ("O0", "O1", "O2", "O3", "bf16", "fp16", "fp32")),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            yield key, f"{value!r} is none of {', '.join(filter(None, allowed))}", f"Write {allowed[0] or allowed[1]}"
    if c.backend == "submitit":
        if not c.entry:
            yield "backend", "submitit runs Python functions", "Use entry:, or backend: sbatch"
        for key, used in {
            "launch.launcher": c.launch.launcher == "torchrun",
            "launch.container": c.launch.container.image,
            "launch.template": c.launch.template,
        }.items():
            if used:
                yield key, "submitit writes its own script, which has no place for this", "Use backend: sbatch"
    if c.resources.gpus_per_task and c.launch.launcher == "torchrun":
        yield "resources.gpus_per_task", "torchrun's agent is one task for all ranks of a node", "Use gpus_per_node"


def _bad_train(c: Config) -> Iterator[tuple[str, str, str]]:
    t = c.train
    if t.accumulate < 1:
        yield "train.accumulate", f"{t.accumulate} is less than 1", "Write the number of batches to a step"
    if t.clip_norm is not None and t.clip_value is not None:
        yield "train.clip_value", "gradients are clipped by norm or by value, not both", "Keep one"
    if t.compile is not None and not isinstance(t.compile, (bool, dict)):
        yield (
            "train.compile",
            f"{t.compile!r} is neither true nor arguments",
            "Write true, or e.g. {mode: max-autotune}",
        )
    for key, needs in {"ddp": ("ddp",), "comm_hook": ("ddp",), "fsdp": ("fsdp", "hsdp")}.items():
        if getattr(t, key) and t.strategy not in needs:
            yield f"train.{key}", f"says nothing where train.strategy is {t.strategy}", "Leave it out"
    if t.powersgd and t.comm_hook != "powersgd":
        yield "train.powersgd", "says nothing without train.comm_hook: powersgd", "Write that, too"
    scaled = t.amp.level in ("O1", "O2", "O3", "fp16") or t.amp.loss_scale not in (None, 1)
    if t.comm_hook == "powersgd" and (t.on_nan == "skip" or scaled):
        # What a step has left out is added to the next: once not finite, it is so for good.
        remedy = "Use level bf16 or O0 without loss_scale and on_nan: stop, or comm_hook: bf16"
        yield "train.comm_hook", "powersgd cannot skip a step, as an overflow or on_nan: skip would have it", remedy
    if t.amp.level in ("O2", "O3") and t.strategy in ("fsdp", "hsdp"):
        remedy = "Use O1 or bf16, or train.fsdp: {param_dtype: bfloat16}"
        yield "train.amp.level", f"{t.amp.level} halves the weights, and {t.strategy} shards them in fp32", remedy


def _bad_measuring(c: Config) -> Iterator[tuple[str, str, str]]:
    profile, trace = c.profile, c.profile.trace
    if profile.find and (profile.steps is None or profile.steps < LEAST_STEPS):
        yield "profile.steps", f"{profile.steps} are too few to find anything", f"Write {LEAST_STEPS} or more"
    if trace.start is not None and trace.start < 3:
        yield (
            "profile.trace.start",
            f"{trace.start} is too early, for it takes a step to begin",
            "Write 3 or more",
        )
    if trace.steps < 1:
        yield "profile.trace.steps", f"{trace.steps} is less than 1", "Write 1 or more"
    known = ("tensorboard", "wandb", "mlflow")
    for name in c.metrics.to:
        if name not in known:
            yield "metrics.to", f"{name!r} is none of {', '.join(known)}", "Write one of them"
    for name, options in c.metrics.options.items():
        for key in options if isinstance(options, Mapping) else ():
            if SECRET.search(str(key)):
                remedy = "Leave it out, and set the environment variable of its own on the nodes"
                yield f"metrics.options.{name}.{key}", "is a secret, and would stand in the run folder", remedy


def _bad_saving(c: Config) -> Iterator[tuple[str, str, str]]:
    saving = c.checkpoint
    positive = ("keep_last", "every_steps", "keep_every", "timeout_s")
    for name in (*positive, "max_failures", "check_replicas_every", "keep_local", "retry_s"):
        number, least = getattr(saving, name), int(name in positive)
        if number is not None and number < least:
            yield f"checkpoint.{name}", f"{number} is less than {least}", f"Write {least} or more"
    if saving.url and "://" in saving.url:
        from clusterdp.storage.address import has_password

        if has_password(saving.url):
            yield "checkpoint.url", "has a secret in it, which would stand in the run folder", CREDENTIALS
    elif saving.keep_local:
        yield "checkpoint.keep_local", "is for a checkpoint.url that is a store", "Leave it out, or set checkpoint.url"
    for name in saving.storage_options:
        if name in ("key", "secret") or SECRET.search(name):
            yield f"checkpoint.storage_options.{name}", "is a secret, which would stand in the run folder", CREDENTIALS


def _bad_values(c: Config) -> Iterator[tuple[str, str, str]]:
    r = c.resources
    for key, number in {
        "resources.nodes": r.nodes,
        "resources.cpus_per_task": r.cpus_per_task,
        "resources.tasks_per_node": r.tasks_per_node,
    }.items():
        if number is not None and number < 1:
            yield key, f"{number} is less than 1", "Write a positive number"
    if r.time is not None and not TIME.fullmatch(r.time):
        yield "resources.time", f"{r.time!r} is no time of Slurm's", 'Write e.g. "2:00:00", "1-12:00:00" or 90, minutes'
    signal = c.launch.signal
    if signal is not None and not re.fullmatch(r"(SIG)?[A-Z]+\d?(@\d+)?|\d+(@\d+)?", signal):
        yield "launch.signal", f"{signal!r} is not NAME[@SECONDS]", "Write e.g. USR2@90; B: is for the script alone"
    for name, value in c.launch.env.items():
        key = f"launch.env.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            yield key, "is not the name of an environment variable", "Use letters, digits and _"
        if SECRET.search(name):
            yield key, "is a secret by its name, and would stand in job.sbatch", "Export it before you submit instead"
        if "\0" in value:
            yield key, "has a NUL character", "Remove it"
    for option in r.extra:
        key = f"resources.extra.{option}"
        if option in OURS:
            yield key, "is set by clusterdp", f"Use {OURS[option]}"
        if option.replace("-", "_") in {f.name for f in dataclasses.fields(Resources)}:
            yield key, "has a key of its own", f"Write resources.{option.replace('-', '_')}"
        if not re.fullmatch(r"[a-z][a-z0-9-]+", option):
            yield key, "is not a long option of sbatch", "Write it without dashes in front: mail-type: END"
    if not 0 < (c.local.preempt_at or 0.5) < 1:
        yield "local.preempt_at", f"{c.local.preempt_at} is not between 0 and 1", "Write e.g. 0.5"
