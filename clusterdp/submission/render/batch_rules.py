"""The config's decisions for the batch program (clusterdp/batch/files/rules.py), which reads these rules in the run
folder."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from clusterdp.config.tree import POLICIES, PolicyConfig, RestartConfig
from clusterdp.submission.render.job_secrets import secret_path
from clusterdp.submission.render.script_spec import ScriptSpec

DEFAULT_MAX_HOURS = 48  # default of restart.max_hours for an entry job


def rules_of(spec: ScriptSpec, check: str = "") -> dict[str, Any]:
    """Returns the rules as a dictionary with the field names of Rules in the batch program. `check` has the bash lines
    of a preflight task; empty without a preflight."""
    config = spec.config
    notify = config.notify
    return {
        "kind": spec.kind,
        "name": config.name,
        "nodes": config.resources.least_nodes,
        "sizes": config.resources.sizes if config.resources.is_elastic else [],
        "spare_nodes": config.resources.spare_nodes,
        "grow_after_s": config.restart.grow_after_s,
        "tasks_per_node": spec.tasks_per_node,
        "exclude": config.resources.exclude or "",
        "nodelist": config.resources.nodelist or "",
        "requeue": config.restart.requeue,
        "in_place": spec.restarts_in_place,
        "warm_after_s": spec.warm_after_s,
        "fork_server": spec.has_fork_server,
        "no_kill": spec.no_kill,
        "copies": spec.keeps_copies,
        "keeps_local": bool(config.checkpoint.keep_local),
        "warned_s": spec.warned_s,
        "how": config.restart.how,
        "chain": config.restart.chain or 0,
        "policies": _policies(config.restart),
        "max_crashes": config.restart.max_crashes,
        "max_no_progress": config.restart.max_no_progress,
        "max_attempts": config.restart.max_attempts,
        "max_hours": config.restart.max_hours or (DEFAULT_MAX_HOURS if spec.kind == "entry" else None),
        "checkpoint_url": (config.checkpoint.url or "").rstrip("/") if spec.array else config.checkpoint.url or "",
        "after": (config.after or {}).get("runs", []),
        "environment": bool(spec.archive),
        "is_sweep": spec.array is not None,
        "from_step": config.restart.from_step,
        "silence_s": math.ceil(config.restart.hang_after_s or 0) if spec.kind != "entry" else 0,
        "on_hang": config.restart.on_hang,
        "preflight": _preflight(spec, check) if config.launch.preflight else [],
        "notify": list(notify.on) if notify.given else [],
        "webhook_file": secret_path(notify.webhook_file) if notify.webhook_file else "",
        "notify_command": list(notify.command),
    }


def _policies(restart: RestartConfig) -> dict[str, dict[str, Any]]:
    found = {}
    for cause in POLICIES:
        policy: PolicyConfig = getattr(restart, cause)
        found[cause.replace("_", "-")] = {
            "limit": policy.limit,
            "wait_s": math.ceil(policy.wait_s),
            "avoid": policy.avoid_node,
        }
    return found


def _preflight(spec: ScriptSpec, check: str) -> list[str]:
    """Returns the command of the preflight step: one task on each node, which sees the GPUs of all ranks of the node. A
    healthy task always exits with 0. Any other code means that the task has died, and --kill-on-bad-exit ends the
    step."""
    cpus = spec.config.resources.cpus_per_task * spec.ranks_per_node
    words = ["srun", "--nodes={nodes}", "--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}"]
    words += [*spec.preflight_flags(), "--export=ALL", "--kill-on-bad-exit=1", "--wait=420"]
    if spec.config.resources.gpus_per_task:
        # srun reads the job's request from these variables, and would give a task only the GPUs of one rank: Slurm
        # 22.05 refuses more GPUs, and 26.05 binds the task to one GPU in any case.
        inherited = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_GPU_BIND")
        words = ["env", *(word for name in inherited for word in ("-u", name)), *words]
    words += ["bash", "-c", check, "check", *spec.container_prefix()]
    return [*words, spec.python, "-u", "-m", "clusterdp.train.preflight", "{run}"]


def requeues_of(rules: dict[str, Any]) -> list[str]:
    """Returns lines for the script's header, which say after which causes, and how often, the job is requeued."""
    if not rules["requeue"]:
        return ["It is never requeued (restart.requeue is false)."]
    by_limit: dict[str, list[str]] = {}
    for cause, policy in rules["policies"].items():
        limit = "always" if policy["limit"] is None else f"at most {policy['limit']} times"
        by_limit.setdefault(limit, []).append(cause)
    policies = "; ".join(f"{limit} after {', '.join(causes)}" for limit, causes in by_limit.items())
    limits = [f"{rules['max_crashes']} faults (crash, start, memory, hung, disk)"]
    if rules["max_attempts"]:
        limits.append(f"{rules['max_attempts']} attempts")
    if rules["max_hours"]:
        limits.append(f"{rules['max_hours']:g} h without a newer checkpoint")
    if rules["kind"] == "entry":
        limits.append(f"{rules['max_no_progress']} attempts without one")
    text = f"It is requeued {policies}; never after a scancel; and not after more than {', '.join(limits)}."
    if rules["in_place"]:
        text += " In place at first: crash, start, hung."
    if rules["spare_nodes"]:
        text += " A spare node takes the place of a lost one first."
    elif rules["in_place"] and rules["sizes"]:
        text += " If a node is lost, it goes on in place on the nodes that are left, if they are enough."
    return textwrap.wrap(text, 116)
