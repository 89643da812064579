"""--json and --yaml of squeue, sinfo and scontrol in 22.05: openapi v0.0.38. sacct_json has the JSON of sacct.

as_newer_json has the JSON of 23.11 and later.
"""

from __future__ import annotations

import json
import platform
from typing import Any

from ...core.hostlist import compress
from ...core.model import JobRecord, Model, Node
from ...core.ranges import index_text, ranges
from ...core.shape import host_name
from ...slurmctld.controller import Controller
from ...slurmctld.dependencies import dependency_state
from ...slurmctld.step_plans import shown_path
from ...slurmdbd.accounting import asked_memory, size
from .sinfo_fields import allocated, state_words
from .squeue_fields import SqueueJob, tres_per_node

Json = dict[str, Any]


class JsonWriter:
    sinfo_kind = "nodes"

    def __init__(self, controller: Controller):
        self.controller = controller

    def write(self, kind: str, what: list[Json], accounting: bool = False) -> str:
        """Returns the complete JSON document, without a newline at the end."""
        text = json.dumps(self.whole(kind, what, accounting), indent=2)
        return text.replace("/", "\\/")  # json-c, which Slurm uses, escapes slashes

    def write_yaml(self, kind: str, what: list[Json], accounting: bool = False) -> str:
        body = "\n".join(_yaml(self.whole(kind, what, accounting), ""))
        return f"%YAML 1.1\n--- !!map\n{body}\n..."

    def whole(self, kind: str, what: list[Json], accounting: bool = False) -> Json:
        return {"meta": self._meta(accounting), "errors": [], kind: what}

    def _meta(self, accounting: bool) -> Json:
        text = self.controller.settings.slurm_version
        major, minor, micro = [*text.split("."), "0", "0"][:3]
        name, kind = ("Slurm OpenAPI DB", "dbv0.0.38") if accounting else ("Slurm OpenAPI", "v0.0.38")
        version = {"major": int(major), "micro": int(micro), "minor": int(minor)}
        plugin = {"type": f"openapi/{kind}", "name": f"{name} v0.0.38"}
        return {"plugin": plugin, "Slurm": {"version": version, "release": text}}

    def number(self, value: float | None) -> Any:
        """Returns the JSON of a number that may be missing or unlimited."""
        return None if value is None else int(value)

    def moment(self, value: float | None) -> Any:
        return int(value or 0)

    def limit(self, minutes: int | None) -> Any:
        return minutes or None

    # -- jobs and nodes --

    def job(self, job: JobRecord) -> Json:
        controller, desc = self.controller, job.desc
        row = SqueueJob(job, controller, "")
        user, array, het = controller.user, job.array, job.het
        release = controller.settings.release
        memory = asked_memory(job, min(node.memory_mb for node in controller.model.nodes.values()))
        asked = f"cpu={row.cpus},mem={size(memory)},node={row.number_of_nodes},billing={row.cpus}"
        waits = array and not array.split
        return {
            "account": desc.account,
            "accrue_time": self.moment(job.eligible_time),
            "array_job_id": self.moment(array.id if array else 0),
            "array_task_id": self.number(array.indexes[0] if array and array.split else None),
            "array_max_tasks": self.moment(array.throttle if array else 0),
            "array_task_string": index_text(array.indexes, array.throttle) if array and waits else "",
            "batch_flag": desc.batch,
            "batch_host": job.batch_host or "",
            "flags": ["JOB_WAS_RUNNING"] if job.start is not None and job.shares else [],
            "cluster": controller.shape.name,
            "command": desc.command or "",
            "comment": desc.comment or "",
            "contiguous": "contiguous" in desc.shown,
            "billable_tres": float(row.cpus) if job.held_shares else None,
            "cpus_per_task": self.number(desc.cpus_per_task),
            "deadline": self.moment(desc.deadline),
            "dependency": dependency_state(controller.model, job, controller.clock()).text,
            "derived_exit_code": self.exit(job.derived),
            "eligible_time": self.moment(job.eligible_time),
            "end_time": self.moment(row.end),
            "excluded_nodes": compress(desc.exclude),
            "exit_code": self.exit(job.status),
            "features": desc.features or "",
            "gres_detail": [f"gpu:{len(s.gpus)}(IDX:{ranges(s.gpus)})" for s in job.shares if s.gpus],
            "group_id": user.gid,
            "group_name": user.group,
            "job_id": job.id,
            "job_resources": _resources(job),
            "job_state": job.shown_state.value,
            "last_sched_evaluation": self.moment(job.last_sched),
            "max_cpus": self.moment(0),
            "max_nodes": self.moment(0),
            "name": desc.name,
            "nodes": compress(job.nodes),
            "nice": desc.nice or None,
            "tasks_per_node": self.moment(desc.tasks_per_node),
            "cpus": self.moment(row.cpus),
            "node_count": self.moment(row.number_of_nodes),
            "tasks": self.moment(desc.tasks or row.number_of_nodes),
            "het_job_id": self.moment(het.leader if het else 0),
            "het_job_id_set": f"{het.leader}-{het.leader + het.size - 1}" if het else "",
            "het_job_offset": self.moment(het.offset if het else 0),
            "partition": desc.partition,
            "prefer": desc.prefer or "",
            "memory_per_node": self.number(desc.mem_per_node),
            "memory_per_cpu": self.number(desc.mem_per_cpu),
            "minimum_cpus_per_node": self.moment(desc.min_cpus or 1),
            "preempt_time": self.moment(job.preempt_time),
            "priority": self.moment(0 if job.held else job.priority),
            "qos": desc.qos,
            "required_nodes": compress(desc.nodelist),
            "requeue": desc.requeue,
            "restart_cnt": job.restarts,
            "resv_name": "",
            "start_time": self.moment(row.begin),
            "state_description": "",
            "state_reason": job.reason.replace(" ", "_"),
            "standard_error": shown_path(job, desc.error or desc.output, user.name, release) if desc.batch else "",
            "standard_input": (desc.input or "/dev/null") if desc.batch else "",
            "standard_output": shown_path(job, desc.output, user.name, release) if desc.batch else "",
            "submit_time": self.moment(job.submit_time),
            "suspend_time": self.moment(0),
            "time_limit": self.limit(job.minutes),
            "time_minimum": self.moment(0),
            "tres_per_job": f"gres:gpu:{desc.gpus_option}" if desc.gpus_option else "",
            "tres_per_node": tres_per_node(job, self.controller.settings.release.gpu_prefix),
            "tres_per_task": f"gres:gpu:{desc.gpus_per_task_option}" if desc.gpus_per_task_option else "",
            "tres_req_str": asked,
            "tres_alloc_str": row.tres if job.held_shares else "",
            "user_id": user.uid,
            "user_name": user.name,
            "wckey": desc.shown.get("wckey", ""),
            "current_working_directory": desc.folder,
        }

    def exit(self, status: int) -> Any:
        return status

    def node(self, model: Model, node: Node) -> Json:
        base, *flags = state_words(model, node).split("+")
        used = allocated(model, node.name)
        gpus = sum(len(share.gpus) for job in model.holding() for share in job.shares if share.node == node.name)
        return {
            "architecture": platform.machine(),
            "boards": 1,
            "boot_time": self.moment(node.boot_time),
            "cores": 1,
            "cpus": node.cpus,
            "last_busy": self.moment(node.busy_time),
            "features": ",".join(node.features),
            "active_features": ",".join(node.features),
            "gres": node.gres_of(node.gpus),
            "gres_drained": "N/A",
            "gres_used": node.gres_of(gpus),
            "name": node.name,
            "address": "127.0.0.1",
            "hostname": host_name(),
            "state": base.lower(),
            "state_flags": flags,
            "operating_system": f"{platform.system()} {platform.release()}",
            "partitions": [part.name for part in model.partitions.values() if node.name in part.nodes],
            "real_memory": node.memory_mb,
            "reason": node.reason,
            "reason_changed_at": self.moment(node.reason_time),
            "reason_set_by_user": self.controller.user.name if node.reason else None,
            "sockets": node.cpus,
            "threads": 1,
            "temporary_disk": 0,
            "weight": 1,
            "tres": f"cpu={node.cpus},mem={node.memory_mb}M,billing={node.cpus}",
            "slurmd_version": self.controller.settings.slurm_version,
            "alloc_memory": 0,
            "alloc_cpus": used,
            "idle_cpus": node.cpus - used,
            "tres_used": f"cpu={used}" if used else None,
        }


def _yaml(value: Any, indent: str) -> list[str]:
    """Returns a value as lines of YAML, in which each value has its type in front."""
    lines = []
    pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for key, each in pairs:
        head = f"{indent}- " if key is None else f"{indent}!!str {key}: "
        if isinstance(each, dict | list):
            lines.append(head + ("!!map" if isinstance(each, dict) else "!!seq"))
            lines += _yaml(each, indent + "  ")
        else:
            kind = {str: "!!str", bool: "!!bool", int: "!!int", float: "!!float"}.get(type(each), "!!null")
            lines.append(f"{head}{kind} {json.dumps(each)}")
    return lines


def _resources(job: JobRecord) -> Json:
    shares = job.held_shares
    if not shares:
        return {}
    return {
        "nodes": compress(share.node for share in shares),
        "allocated_cores": sum(share.cpus for share in shares),
        "allocated_hosts": len(shares),
        "allocated_nodes": [
            {"nodename": share.node, "cpus_used": share.cpus, "memory_used": 0, "memory_allocated": 0}
            for share in shares
        ],
    }
